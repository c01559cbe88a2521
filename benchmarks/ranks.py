"""What ranks cost: two ranks of ddp beside two independent processes.

    python -m benchmarks.ranks [--rounds 50 | --quick]      # 2 ranks × 1 thread, resnet20, 128 samples per rank

The same two processes take turns at a few steps as one job and a few as two jobs, so that changes in the speed of the
machine, which last for seconds, affect both. Efficiency is the rate of the one over the mean rate of the others. Two
independent jobs with a barrier per step show the part of the cost that any synchronous training pays on a machine whose
cores are not equally fast at all times.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

from benchmarks.interleave import ratios_of
from paceline.core.config import Config
from paceline.core.setting_types import Interval
from paceline.core.world import World
from paceline.engine.clock import Clock
from paceline.engine.job import build_job
from paceline.engine.loop import Training
from paceline.engine.progress import Progress
from paceline.engine.rank import open_run_folder
from paceline.engine.run import JobRun
from paceline.parallel.device import hold_memory
from paceline.parallel.join import join
from paceline.parallel.team import Team

NEVER = Interval(10**9)
SAMPLES_PER_RANK = 128
HERE = Path(__file__)
SHAPES = {"cifar": "images of 3×32×32", "digits": "images of 1×8×8"}
CPU = torch.device("cpu")


def noise(num_ranks: int, *shape: int) -> TensorDataset:
    """Return an epoch of 20 steps for `num_ranks` ranks: the length of an epoch is the same for all variants."""
    generator = torch.Generator().manual_seed(0)
    count = 20 * SAMPLES_PER_RANK * num_ranks
    return TensorDataset(
        torch.rand(count, *shape, generator=generator), torch.randint(0, 10, (count,), generator=generator)
    )


def cifar_1() -> TensorDataset:
    return noise(1, 3, 32, 32)


def cifar_2() -> TensorDataset:
    return noise(2, 3, 32, 32)


def digits_1() -> TensorDataset:
    return noise(1, 1, 8, 8)


def digits_2() -> TensorDataset:
    return noise(2, 1, 8, 8)


@contextlib.contextmanager
def job_of(team: Team, data: str, folder: Path) -> Iterator[Callable[[int], None]]:
    """Give a function that trains for a number of steps, with all records on."""
    config = Config(
        model="resnet20", data=f"{HERE}:{data}_{team.world.size}", valid_split=0.0, epochs=10**6,
        global_batch=team.world.size * SAMPLES_PER_RANK,
        eval_every=NEVER, save_every=NEVER, threads=1, runs_dir=folder, augment="none",
    )  # fmt: skip
    hold_memory()
    progress, clock = Progress(), Clock(alone=team.world.size == 1)
    job = build_job(config, team)
    run = JobRun(job, progress, team, open_run_folder(job, None, team.world), clock=clock)
    training = Training(job, progress, team, run.recorder, clock=clock)

    def train(steps: int) -> None:
        end = progress.step + steps
        while progress.step < end:
            for step, parts in training.batches_of_epoch():
                lr = training.train_step(step, parts)
                training.after_step(step, lr)
                team.poll(False)  # noqa: FBT003 - as the loop does, with nobody asking to stop
                if progress.step == end:
                    break

    with run.recorder.attached(run.trackers(), run.info()):
        job.model.train()
        yield train


def take_part(world: World, folder: Path, *, data: str, steps: int, rounds: int) -> list[tuple[float, ...]]:
    """Return the samples/s of a rank in each round: in a job of two ranks, alone, and alone with a barrier per step."""
    torch.set_num_threads(1)
    with contextlib.ExitStack() as stack:
        team = stack.enter_context(join(world, CPU))
        together = stack.enter_context(job_of(team, data, folder / f"together-{world.rank}"))
        alone = stack.enter_context(job_of(Team(World(), CPU), data, folder / f"alone-{world.rank}"))
        barrier = partial(team.any, False)  # noqa: FBT003 - any collective

        def with_barrier(steps: int) -> None:
            for _ in range(steps):
                alone(1)
                barrier()

        variants = (together, alone, with_barrier)
        found = []
        for number in range(rounds + 1):
            rates = {}
            for train in variants[number % 3 :] + variants[: number % 3]:
                barrier()
                start = time.perf_counter()
                train(steps)
                rates[train] = steps * SAMPLES_PER_RANK / (time.perf_counter() - start)
            if number:
                found.append([rates[train] for train in variants])
        return [tuple(map(statistics.mean, zip(*both, strict=True))) for both in zip(*team.gather(found), strict=True)]


def speed(data: str, *, steps: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        command = [sys.executable, "-m", "benchmarks.ranks", data, str(steps), str(rounds), name]
        ranks = [
            subprocess.Popen(
                [*command, str(rank)], stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
            )
            for rank in range(2)
        ]
        outputs = [rank.communicate()[0] for rank in ranks]
        assert not any(rank.returncode for rank in ranks)
    rates = [tuple(map(float, line.split()[1:])) for line in outputs[0].splitlines() if line.startswith("rates ")]
    together, alone, with_barrier = zip(*rates, strict=True)
    print(
        f"\nresnet20, {SAMPLES_PER_RANK} {SHAPES[data]} per rank, 2 ranks × 1 thread, {rounds} rounds of {steps} steps"
    )
    print(f"  two processes without communication      {statistics.median(alone):8.1f} samples/s each")
    show("the same, with a barrier per step", with_barrier, alone)
    show("ddp", together, alone)
    show("ddp, beside those with a barrier", together, with_barrier)


def show(title: str, rates: tuple[float, ...], others: tuple[float, ...]) -> None:
    """Print rates as a fraction of others: by the median of rounds, by the time of all, and at rest.

    At rest is the rate that a quarter of the rounds exceed, for both: other programs only slow a
    round down.
    """
    ratio = ratios_of(title, rates, others)
    whole = sum(1 / rate for rate in others) / sum(1 / rate for rate in rates)
    at_rest = statistics.quantiles(rates, n=4)[2] / statistics.quantiles(others, n=4)[2]
    middle = f"(middle half {ratio.low:.3f} … {ratio.high:.3f})"
    print(f"  {title:<40} {ratio.median:8.1f} samples/s each, {ratio.ratio:.3f} {middle}, ", end="")
    print(f"{whole:.3f} over all rounds, {at_rest:.3f} at rest")


def main() -> None:
    parser = argparse.ArgumentParser(description="What ranks cost")
    parser.add_argument("rank_task", nargs="*", help="internal: the task of one rank")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--quick", dest="rounds", action="store_const", const=2, help="two rounds")
    given = parser.parse_args()
    if not given.rank_task:
        speed("cifar", steps=2, rounds=given.rounds)
        speed("digits", steps=10, rounds=given.rounds)
        return
    data, steps, rounds, folder, rank = given.rank_task
    world = World(rank=int(rank), size=2, launcher="flags", init_method=f"file://{folder}/rendezvous")
    for rates in take_part(world, Path(folder), data=data, steps=int(steps), rounds=int(rounds)):
        print("rates", *rates, flush=True)


if __name__ == "__main__":
    main()
