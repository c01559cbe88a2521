"""What ranks cost: two ranks beside two processes that do not talk, and our launcher beside plain torchrun.

    python -m benchmarks.ranks            # both
    python -m benchmarks.ranks --quick    # a few rounds

The first part runs both contenders in the same two processes, in turns: resnet20 on 32×32×3 images, 128 per rank, one
thread each. A turn ends when both processes have done their steps, so the slower one counts for both contenders.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.loop_overhead import NEVER, StopAfter
from paceline.core.config import Config
from paceline.core.start import Start
from paceline.core.world import World
from paceline.engine.clock import Clock
from paceline.engine.job import build_job
from paceline.engine.loop import Training
from paceline.engine.recorder import Recorder
from paceline.engine.state import Progress
from paceline.parallel.detect import detect_world
from paceline.parallel.team import Team, join

DATA = """
import torch
from torch.utils.data import TensorDataset
def build():
    torch.manual_seed(0)
    return TensorDataset(torch.randn(2048, 3, 32, 32), torch.randint(0, 10, (2048,)))
"""

CLOCKED = """
import time
from torch import nn
class Net(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes))
    def forward(self, images):
        if self.training:
            print("first step", time.time(), flush=True)
        return super().forward(images)
"""


class Contender:
    """A training that goes on for some steps whenever it is its turn."""

    def __init__(self, config: Config, team: Team) -> None:
        self.progress, clock = Progress(), Clock()
        job = build_job(config, team)
        recorder = Recorder(job.plan, self.progress, team, clock=clock)
        self.training = Training(job, self.progress, team, recorder, clock=clock)

    def turn(self, steps: int) -> None:
        stop = StopAfter(self.progress)
        stop.limit = self.progress.step + steps
        self.training.run(stop, save=lambda is_best=False: None, check=lambda: None)


def worker(data: str, rounds: int, steps: int) -> None:
    """Be one of two processes that take both turns; the lead prints the ratio."""
    torch.set_num_threads(1)
    world = detect_world(os.environ, Start())
    settings = {"model": "resnet20", "data": data, "epochs": 10**6, "eval_every": NEVER, "save_every": NEVER}
    with join(world, torch.device("cpu")) as team:
        together = Contender(Config(global_batch=128 * world.size, **settings), team)
        apart = Contender(Config(global_batch=128, **settings), Team(World(), torch.device("cpu")))
        ratios = []
        for number in range(rounds + 1):
            seconds = []
            for contender in (apart, together):
                team.any(False)  # noqa: FBT003 - both start together
                start = time.perf_counter()
                contender.turn(steps)
                seconds.append(max(team.gather(time.perf_counter() - start)))
            if number:
                ratios.append(seconds[0] / seconds[1])
        if team.is_lead:
            ratios.sort()
            print(f"\nresnet20, 128 images per rank, 1 thread each, {rounds} rounds of {steps} steps")
            quarter = len(ratios) // 4
            middle = f"(middle half {ratios[quarter]:.3f} … {ratios[-1 - quarter]:.3f})"
            print(f"  two ranks reach {statistics.median(ratios):.3f} of two processes that do not talk  {middle}")


def compare_speed(folder: Path, *, rounds: int, steps: int) -> None:
    (folder / "images.py").write_text(DATA)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, "-m", "benchmarks.ranks", "--worker", str(folder / "images.py"), str(rounds), str(steps)]
    subprocess.run(command, check=True, timeout=1200, env=os.environ | {"OMP_NUM_THREADS": "1"})


def compare_start(folder: Path, *, rounds: int) -> None:
    (folder / "clocked.py").write_text(CLOCKED)
    train = f"train --model {folder}/clocked.py:Net --steps 1 --threads 1 --runs-dir {folder}/runs --track none".split()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "paceline"]
    commands = {
        "torchrun -m paceline, 2 ranks": [*torchrun, *train],
        "paceline train --nproc 2": [sys.executable, "-m", "paceline", *train, "--nproc", "2"],
        "paceline train, 1 rank": [sys.executable, "-m", "paceline", *train],
    }
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            taken = _until_first_step(command)
            if number:
                seconds[name].append(taken)
    baseline = statistics.median(seconds["torchrun -m paceline, 2 ranks"])
    print(f"\nseconds from start to first step, median of {rounds}")
    for name, values in seconds.items():
        print(f"  {name:<30}  {statistics.median(values):5.2f} s   {statistics.median(values) - baseline:+.2f} s")


def _until_first_step(command: list[str]) -> float:
    start = time.time()
    environ = os.environ | {"OMP_NUM_THREADS": "1"}
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environ).stdout
    return min(float(line.split()[-1]) for line in output.splitlines() if line.startswith("first step")) - start


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare ranks with processes that do not talk")
    parser.add_argument("--quick", action="store_true", help="a few rounds")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        path, rounds, steps = options.worker
        with contextlib.redirect_stderr(None):
            worker(f"{path}:build", int(rounds), int(steps))
        return
    with tempfile.TemporaryDirectory() as folder:
        compare_speed(Path(folder), rounds=2 if options.quick else 12, steps=2 if options.quick else 5)
        compare_start(Path(folder), rounds=1 if options.quick else 7)


if __name__ == "__main__":
    main()
