"""What `--exact bitwise` costs: step time beside plain training and stock DDP, and bytes beside a ring all-reduce.

    python -m benchmarks.exact                 # one process, two ranks on loopback and over 1 Gbit/s, hosts, bytes
    python -m benchmarks.exact --quick         # a few rounds
    python -m benchmarks.exact --only loopback

One thread per rank, images of 3×32×32. All variants run in the same processes and take turns. Links of 1 Gbit/s and
bytes on the wire need root: hosts are network namespaces, and their interfaces count.
"""

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import TensorDataset

from benchmarks.interleave import Outcome, show, take_turns
from benchmarks.loop_overhead import NEVER, TOTAL, StopAfter
from lab.hosts import Hosts, why_not
from paceline.core.config import Config
from paceline.core.world import World
from paceline.engine.clock import Clock
from paceline.engine.job import build_job
from paceline.engine.loop import Training
from paceline.engine.progress import Progress
from paceline.engine.rank import open_run_folder
from paceline.engine.run import JobRun
from paceline.parallel.device import hold_memory
from paceline.parallel.exact.determinism import deterministic_only
from paceline.parallel.join import join
from paceline.parallel.network import choose_interface
from paceline.parallel.team import Team

PORT = 29511
LONGEST = 460
"""Seconds after which a benchmark is given up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What is trained, by how many ranks, and how often."""

    model: str = "resnet20"
    batch: int = 128
    shards: tuple[int, ...] = (4,)
    """One bitwise variant for each."""
    micro_batches: tuple[int, ...] = ()
    """One variant without exactness for each, with this many micro-batches per rank and step."""
    steps: int = 4
    warm_up: int = 18
    """Steps before the first round: bitwise sums are wide in the first 16."""
    rounds: int = 20
    world: int = 1

    def __str__(self) -> str:
        return f"{self.model}, batch {self.batch}, {self.rounds} rounds of {self.steps} steps"


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What rank 0 measured: times, and bytes that the ranks of each variant sent per step."""

    outcomes: list[Outcome]
    sent: dict[str, float]


def random_samples() -> TensorDataset:
    """Return as many random samples as a few steps need."""
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(4096, 3, 32, 32, generator=generator), torch.randint(0, 10, (4096,), generator=generator)
    )


class Nano(torch.nn.Module):
    """A transformer over 64 patches of an image."""

    def __init__(self, num_classes: int, width: int = 96) -> None:
        super().__init__()
        self.patches = torch.nn.Conv2d(3, width, 4, stride=4)
        layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = torch.nn.Linear(width, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.patches(images).flatten(2).mT).mean(1))


class Variant:
    """A run that is continued for a few steps at a time."""

    def __init__(
        self,
        settings: dict[str, Any],
        work: Work,
        team: Team,
        folder: Path,
        prepare: Callable[["Variant"], Any] | None = None,
    ) -> None:
        """`prepare` may change the variant before it trains."""
        config = Config(
            data=f"{__file__}:random_samples",
            model=work.model,
            global_batch=work.batch,
            epochs=TOTAL,
            eval_every=NEVER,
            save_every=NEVER,
            log_every=10**6,
            lr=0.001,
            threads=1,
            track=(),
            runs_dir=folder,
            **settings,
        )
        self.steps, self.exact = work.steps, config.exact == "bitwise"
        self.progress, clock, self.team = Progress(), Clock(alone=team.world.size == 1), team
        job = build_job(config, team)
        run = JobRun(job, self.progress, team, open_run_folder(job, None, team.world), clock=clock)
        self.training = Training(job, self.progress, team, run.recorder, clock=clock)
        self.stop = StopAfter(self.progress)
        self.sent = self.steps_done = 0
        if prepare is not None:
            prepare(self)
        self.train(work.warm_up)

    def __call__(self) -> tuple[float, float]:
        """Train for some steps; return the seconds of one, and those of CPU time. Collective."""
        self.team.any(False)  # noqa: FBT003 - a barrier
        start, cpu, before = time.perf_counter(), time.process_time(), bytes_sent()
        done = self.train(self.steps)
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        self.sent += bytes_sent() - before
        self.steps_done += done
        return seconds / done, cpu / done

    def train(self, steps: int) -> int:
        """Train for about this many steps, and return how many. Collective: every rank must call it."""
        first = self.progress.step
        self.stop.limit = first + steps
        with deterministic_only() if self.exact else contextlib.nullcontext():
            self.training.run(self.stop, save=lambda is_best=False: None, check=lambda: None)
        self.team.poll(False)  # noqa: FBT003 - the vote of the last step would stop the next variant after one step
        return self.progress.step - first


def bytes_sent() -> int:
    """Return the bytes that have left this host, loopback apart."""
    lines = Path("/proc/net/dev").read_text(encoding="utf-8").splitlines()[2:]
    rows = [line.replace(":", " ").split() for line in lines]
    return sum(int(row[9]) for row in rows if row[0] != "lo")


def compete(work: Work, world: World) -> Answer:
    """Time plain training, or stock DDP, and bitwise in turns, as one of the ranks. Collective."""
    torch.set_num_threads(1)
    hold_memory()
    choose_interface(world, os.environ)
    with join(world, torch.device("cpu"), timeout=120) as team, tempfile.TemporaryDirectory() as folder:
        variants = {"order": Variant({}, work, team, Path(folder))}
        for number in work.micro_batches:
            name = f"order, {number} micro-batches"
            variants[name] = Variant({"accumulate": number}, work, team, Path(folder))
        for shards in work.shards:
            settings = {"exact": "bitwise", "shards": shards}
            variants[f"bitwise, {shards} shards"] = Variant(settings, work, team, Path(folder))
        outcomes = take_turns(dict(variants), rounds=work.rounds)
        sent = {name: sum(team.gather(one.sent)) / one.steps_done for name, one in variants.items()}
        return Answer(outcomes=outcomes, sent=sent)


def as_rank(task: dict[str, Any]) -> None:
    """Run as one rank; rank 0 prints what it measured."""
    work = Work(**task["work"])
    world = World(rank=task["rank"], size=work.world, launcher="flags", init_method=task["init_method"])
    answer = compete(work, world)
    if world.is_lead:
        print("ANSWER " + json.dumps(asdict(answer)), flush=True)


Starter = Callable[[int, list[str]], "subprocess.Popen[str]"]


def ranks(work: Work, start: Starter, init_method: str, module: str = "benchmarks.exact") -> Answer:
    """Start the ranks of a benchmark and return what rank 0 measured."""
    started = []
    for rank in range(work.world):
        task = json.dumps({"work": asdict(work), "rank": rank, "init_method": init_method})
        started.append(start(rank, [sys.executable, "-m", module, "--as-rank", task]))
    try:
        out, errors = started[0].communicate(timeout=LONGEST)
    finally:
        for process in started:
            process.kill()
    found = [line.removeprefix("ANSWER ") for line in out.splitlines() if line.startswith("ANSWER ")]
    if not found:
        raise SystemExit(f"rank 0 gave no answer\n{out}\n{errors}")
    answer = json.loads(found[0])
    outcomes = [Outcome(**outcome | {"cpu": Outcome(**outcome["cpu"])}) for outcome in answer["outcomes"]]
    return Answer(outcomes=outcomes, sent=answer["sent"])


def here(_rank: int, command: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@contextlib.contextmanager
def on_hosts(number: int, rate: str | None, *, per_host: int = 1) -> Iterator[Starter | None]:
    """Yield a function that starts a rank on a host, with all links shaped to a rate; None where hosts need root."""
    reason = why_not()
    if reason is not None:
        print(f"\nno hosts here: {reason}")
        yield None
        return
    with tempfile.TemporaryDirectory() as folder, Hosts(number, Path(folder)) as hosts:
        for host in range(1, number + 1) if rate else ():
            hosts.limit(host, rate or "")
        yield lambda rank, command: hosts.start(rank // per_host + 1, *command, env=environment(), cwd=Path.cwd())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def single(rounds: int) -> None:
    work = Work(rounds=rounds, shards=(4, 8), micro_batches=(4, 8), steps=2)
    show(f"one process: {work}", compete(work, World()).outcomes, per=1e-3, unit="ms/step")


def loopback(rounds: int) -> None:
    for work in two_ranks(rounds):
        answer = ranks(work, here, f"tcp://127.0.0.1:{free_port()}")
        show(f"2 ranks on loopback: {work}", answer.outcomes, per=1e-3, unit="ms/step")


def link(rounds: int) -> None:
    with on_hosts(2, "1gbit") as start:
        for work in two_ranks(rounds) if start else ():
            answer = ranks(work, start or here, f"tcp://10.77.0.1:{PORT}")
            show(f"2 ranks over 1 Gbit/s: {work}", answer.outcomes, per=1e-3, unit="ms/step")


def two_ranks(rounds: int) -> list[Work]:
    return [
        Work(world=2, rounds=rounds, shards=(4, 8), micro_batches=(2, 4), batch=256, steps=2),
        Work(world=2, rounds=rounds, shards=(4, 8), micro_batches=(2, 4)),
        Work(world=2, rounds=rounds, model=f"{__file__}:Nano", micro_batches=(2,), batch=64),
        Work(world=2, rounds=rounds, model="resnet18", micro_batches=(2,), batch=64, steps=2),
    ]


def hosts(rounds: int) -> None:
    for number, per_host in ((3, 1), (4, 1), (2, 2)):
        with on_hosts(number, "100mbit", per_host=per_host) as start:
            if start is None:
                return
            work = Work(world=number * per_host, rounds=rounds, shards=(4, 8), batch=64, steps=2)
            answer = ranks(work, start, f"tcp://10.77.0.1:{PORT}")
            show(f"{number} hosts × {per_host} over 100 Mbit/s: {work}", answer.outcomes, per=1e-3, unit="ms/step")


def wire(_rounds: int) -> None:
    print("\nbytes that leave all hosts per step, resnet18, beside stock DDP's ring")
    for number, per_host in ((2, 1), (3, 1), (4, 1), (2, 2)):
        with on_hosts(number, None, per_host=per_host) as start:
            if start is None:
                return
            work = Work(world=number * per_host, model="resnet18", batch=16, shards=(4, 6, 8), steps=2, rounds=1)
            sent = ranks(work, start, f"tcp://10.77.0.1:{PORT}").sent
            ring = next(iter(sent.values()))
            for name, value in sent.items():
                mb = value / per_host / 1e6
                print(f"  {number} hosts × {per_host}  {name:<18} {mb:8.2f} MB  {value / ring:.4f}×")


BENCHMARKS = {"single": single, "loopback": loopback, "link": link, "hosts": hosts, "wire": wire}


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the cost of exactness")
    parser.add_argument("--quick", action="store_true", help="a few rounds")
    parser.add_argument("--only", choices=BENCHMARKS, help="one of the benchmarks")
    parser.add_argument("--rounds", type=int, help="rounds of each")
    parser.add_argument("--as-rank", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_rank:
        as_rank(json.loads(options.as_rank))
        return
    for name, benchmark in BENCHMARKS.items():
        if options.only in {None, name}:
            benchmark(options.rounds or (2 if options.quick else 20))


if __name__ == "__main__":
    sys.exit(main())
