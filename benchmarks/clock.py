"""What the clock costs: resnet20 steps with the clock, and the same steps with a clock that measures nothing.

    python -m benchmarks.clock            # interleaved rounds, CPU-seconds of one thread

A step pays for the ends of its phases, the hook on the loss and the callback after the backward pass; reading the
totals once per interval is in it too. That is less than the noise of whole steps, so the same calls are also timed by
themselves, around a backward pass of one number.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.loop_overhead import NEVER, TOTAL, StopAfter
from paceline.core.config import Config
from paceline.core.world import World
from paceline.engine.clock import COPY, DATA, FORWARD, GRAD_SYNC, RECORD, UPDATE, Clock
from paceline.engine.job import build_job
from paceline.engine.loop import Training
from paceline.engine.progress import Progress
from paceline.engine.recorder import Recorder
from paceline.parallel.team import Team


class NoClock(Clock):
    """A clock that stands still."""

    def end_phase(self, phase: int) -> None:
        """Do nothing."""

    def watch(self, loss: Tensor) -> None:
        """Do nothing."""

    def take_waits(self) -> list[float]:
        """Return nothing."""
        return []


def steps(clock: Clock, model: str, batch: int, number: int, folder: str) -> Callable[[], float]:
    """Return a function that takes a number of steps and returns their CPU-seconds."""
    config = Config(
        model=model, global_batch=batch, epochs=TOTAL, eval_every=NEVER, save_every=NEVER, runs_dir=Path(folder)
    )
    team, progress = Team(World(), torch.device("cpu")), Progress()
    job = build_job(config, team)
    training = Training(
        job, progress, team, Recorder(job.plan, progress, team, scoring=job.scoring, clock=clock), clock=clock
    )
    stop = StopAfter(progress)

    def turn() -> float:
        stop.limit = progress.step + number
        start = time.process_time()
        training.run(stop, save=lambda is_best=False: None, check=lambda: None)
        return time.process_time() - start

    return turn


def calls(clock: Clock, number: int = 5000) -> float:
    """Return the CPU-seconds of what a step asks of a clock, and of a backward pass of one number."""
    weight = torch.ones((), requires_grad=True)
    start = time.process_time()
    for _ in range(number):
        for phase in (DATA, COPY, FORWARD):
            clock.end_phase(phase)
        loss = weight * 2
        clock.watch(loss)
        loss.backward()
        for phase in (GRAD_SYNC, GRAD_SYNC, UPDATE, RECORD, RECORD):
            clock.end_phase(phase)
    return (time.process_time() - start) / number


def main() -> None:
    parser = argparse.ArgumentParser(description="What the clock costs a step")
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        with_clock, without = (
            steps(clock, options.model, options.batch, options.steps, folder) for clock in (Clock(), NoClock())
        )
        with_clock()
        without()
        pairs = []
        for number in range(options.rounds):  # whoever goes first takes turns too
            first, second = (with_clock, without) if number % 2 else (without, with_clock)
            seconds = {first: first(), second: second()}
            pairs.append((seconds[with_clock], seconds[without]))
    alone = statistics.median(calls(Clock()) - calls(NoClock()) for _ in range(9))
    ratios = sorted(100 * (mine / bare - 1) for mine, bare in pairs)
    step = statistics.median(bare for _, bare in pairs) / options.steps
    quarter = len(ratios) // 4
    print(
        f"{options.model}, batch {options.batch}, {options.rounds} rounds, {1e3 * step:.2f} ms a step\n"
        f"the clock costs {statistics.median(ratios):+.2f}% "
        f"(middle half {ratios[quarter]:+.2f} … {ratios[-1 - quarter]:+.2f}%); "
        f"its calls by themselves take {1e6 * alone:.1f} µs, {100 * alone / step:.3f}%"
    )


if __name__ == "__main__":
    main()
