"""What ranks cost: two ranks beside two processes that know nothing of each other, and the way to the first step.

    python -m benchmarks.ranks speed      # ddp with 2 ranks × 1 thread, resnet20, 128 images a rank
    python -m benchmarks.ranks start      # seconds from typing to the first step

speed: the same two processes take turns at a block of steps as one job and a block as two jobs, so that both meet the
machine in the same mood. Efficiency is the rate of the one over the mean rate of the others.
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
from pathlib import Path

import torch
from torch.utils.data import TensorDataset

from benchmarks.interleave import ratios_of
from paceline.core.config import Config
from paceline.core.interval import Interval
from paceline.core.world import World
from paceline.engine.clock import Clock
from paceline.engine.job import build_job
from paceline.engine.loop import Training
from paceline.engine.rank import open_folder
from paceline.engine.run import Run
from paceline.engine.state import Progress
from paceline.parallel.team import Team, join

NEVER = Interval(10**9)
IMAGES_PER_RANK = 128
HERE = Path(__file__)
SHAPES = {"cifar": "images of 3×32×32", "digits": "images of 1×8×8"}
CPU = torch.device("cpu")

RAW = """
import os, time, torch, torch.distributed as dist
from torch import nn
torch.set_num_threads(1)
images, labels = torch.randn(1293, 1, 8, 8), torch.randint(0, 10, (1293,))
class Net(nn.Sequential):
    def forward(self, images):
        print("first step at", time.time(), flush=True)
        return super().forward(images)
model = Net(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
if "RANK" in os.environ:
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
nn.functional.cross_entropy(model(images[:64]), labels[:64]).backward()
optimizer.step()
"""

PLUGIN = """
import time
from torch import nn
class Net(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, num_classes))
    def forward(self, images):
        if self.training and len(images) == 64:
            print("first step at", time.time(), flush=True)
        return super().forward(images)
"""


def noise(num_ranks: int, *shape: int) -> TensorDataset:
    """Return an epoch of 20 steps for so many ranks: the length of an epoch is the same for all contenders."""
    generator = torch.Generator().manual_seed(0)
    count = 20 * IMAGES_PER_RANK * num_ranks
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
        global_batch=team.world.size * IMAGES_PER_RANK,
        eval_every=NEVER, save_every=NEVER, threads=1, runs_dir=folder, augment="none",
    )  # fmt: skip
    progress, clock = Progress(), Clock()
    job = build_job(config, team)
    run = Run(job, progress, team, open_folder(job, None, team.world), clock=clock)
    training = Training(job, progress, team, run.recorder, clock=clock)

    def train(steps: int) -> None:
        end = progress.step + steps
        while progress.step < end:
            for step, parts in training.batches_of_epoch():
                lr = training.train_step(step, parts)
                progress.step = step + 1
                training.after_step(lr, lambda is_best=False: None)
                team.poll(False)  # noqa: FBT003 - as the loop does, with nobody asking to stop
                if progress.step == end:
                    break

    with run.recorder.to(run.trackers(), run.info()):
        job.model.train()
        yield train


def take_part(world: World, folder: Path, *, data: str, steps: int, rounds: int) -> list[tuple[float, float]]:
    """Return for each round the images a second of this rank, in one job of two ranks and in a job of its own."""
    torch.set_num_threads(1)
    with contextlib.ExitStack() as stack:
        team = stack.enter_context(join(world, CPU))
        together = stack.enter_context(job_of(team, data, folder / f"together-{world.rank}"))
        alone = stack.enter_context(job_of(Team(World(), CPU), data, folder / f"alone-{world.rank}"))
        found = []
        for number in range(rounds + 1):
            order = (together, alone) if number % 2 else (alone, together)
            rates = {}
            for train in order:
                team.any(False)  # noqa: FBT003 - a barrier
                start = time.perf_counter()
                train(steps)
                rates[train] = steps * IMAGES_PER_RANK / (time.perf_counter() - start)
            if number:
                found.append((rates[together], rates[alone]))
        return [
            (statistics.mean(first for first, _ in both), statistics.mean(second for _, second in both))
            for both in zip(*team.gather(found), strict=True)
        ]


def speed(data: str, *, steps: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        words = [sys.executable, "-m", "benchmarks.ranks", "part", data, str(steps), str(rounds), name]
        ranks = [
            subprocess.Popen(
                [*words, str(rank)], stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
            )
            for rank in range(2)
        ]
        outputs = [rank.communicate()[0] for rank in ranks]
        assert not any(rank.returncode for rank in ranks)
    rates = [tuple(map(float, line.split()[1:])) for line in outputs[0].splitlines() if line.startswith("rates ")]
    together, alone = zip(*rates, strict=True)
    ratio = ratios_of("ddp", together, alone)
    print(f"\nresnet20, {IMAGES_PER_RANK} {SHAPES[data]} a rank, 2 ranks × 1 thread, {rounds} rounds of {steps} steps")
    print(f"  two processes without communication  {statistics.median(alone):8.1f} images/s each")
    print(f"  ddp                                  {ratio.median:8.1f} images/s each")
    print(f"  efficiency {ratio.ratio:.3f} (middle half {ratio.low:.3f} … {ratio.high:.3f})")


def start(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "net.py").write_text(PLUGIN)
        (folder / "raw.py").write_text(RAW)
        words = f"train --model {folder}/net.py:Net --steps 1 --threads 1 --runs-dir {folder}/runs".split()
        python = [sys.executable]
        torchrun = [*python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        commands = {
            "plain script, torchrun, 2 ranks": [*torchrun, f"{folder}/raw.py"],
            "paceline train --nproc 2": [*python, "-m", "paceline", *words, "-b", "128", "--nproc", "2"],
            "torchrun -m paceline train, 2 ranks": [*torchrun, "-m", "paceline", *words, "-b", "128"],
            "plain script, 1 rank": [*python, f"{folder}/raw.py"],
            "paceline train, 1 rank": [*python, "-m", "paceline", *words, "-b", "64"],
        }
        seconds: dict[str, list[float]] = {title: [] for title in commands}
        for number in range(rounds + 1):
            for title, command in commands.items():
                taken = seconds_to_first_step(command)
                if number:
                    seconds[title].append(taken)
    print(f"\nseconds from the command to the first step of all its ranks, {rounds} rounds in turns")
    baselines = {title: "plain script, 1 rank" if "1 rank" in title else next(iter(commands)) for title in commands}
    for title, values in seconds.items():
        more = statistics.median(a - b for a, b in zip(values, seconds[baselines[title]], strict=True))
        print(f"  {title:<36} {statistics.median(values):.2f} s   {more:+.2f} s")


def seconds_to_first_step(command: list[str]) -> float:
    begin = time.time()
    environ = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environ).stdout
    moments = [float(line.split()[-1]) for line in output.splitlines() if line.startswith("first step at")]
    return max(moments) - begin


def main() -> None:
    parser = argparse.ArgumentParser(description="What ranks cost")
    parser.add_argument("question", choices=["speed", "start", "part"])
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    if given.question == "part":
        data, steps, rounds, folder, rank = given.rest
        world = World(rank=int(rank), size=2, told_by="flags", meeting=f"file://{folder}/meet")
        for first, second in take_part(world, Path(folder), data=data, steps=int(steps), rounds=int(rounds)):
            print("rates", first, second, flush=True)
    elif given.question == "speed":
        speed("cifar", steps=5, rounds=given.rounds)
        speed("digits", steps=40, rounds=given.rounds)
    else:
        start(given.rounds)


if __name__ == "__main__":
    main()
