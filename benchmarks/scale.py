"""How costs grow with samples and records: CPU seconds and peak bytes at three sizes, and the fitted exponent.

    python -m benchmarks.scale [--quick]

An exponent of 0 means that the cost does not grow, 1 that it grows in proportion. Bytes are those that Python and numpy
allocate (tracemalloc), in a pass of its own because counting them takes time.
"""

import argparse
import json
import math
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from paceline.core.config import Config
from paceline.core.load import write_config
from paceline.data.order import epoch_order, held_out
from paceline.data.requests import EpochRequests
from paceline.explain.time_split import split_time
from paceline.records.folder import RunFolder
from paceline.records.phases import PHASES, read_phases
from paceline.records.run_index import list_runs
from paceline.records.truncate import drop_later
from paceline.report.run_data import read_run_data

GLOBAL_BATCH = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Growth:
    """The cost of one piece of work at several sizes."""

    name: str
    sizes: tuple[int, ...]
    seconds: tuple[float, ...]
    peak_bytes: tuple[int, ...]

    def __str__(self) -> str:
        cells = [
            f"{size:.0e}: {seconds:.4f} s, {peak / 1e6:.2f} MB"
            for size, seconds, peak in zip(self.sizes, self.seconds, self.peak_bytes, strict=True)
        ]
        exponents = (
            f"time n^{exponent(self.sizes, self.seconds):.2f}, memory n^{exponent(self.sizes, self.peak_bytes):.2f}"
        )
        return f"{self.name:<28} {' | '.join(cells)} | {exponents}"


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Return the slope of log cost over log size."""
    return float(np.polyfit([math.log(size) for size in sizes], [math.log(max(cost, 1e-6)) for cost in costs], 1)[0])


def measure(name: str, sizes: Sequence[int], prepare: Callable[[int], Callable[[], object]]) -> Growth:
    """Measure a piece of work at several sizes; `prepare` returns the work of a size and is not measured."""
    seconds, peaks = [], []
    for size in sizes:
        prepare(size)()  # warm
        work = prepare(size)
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
        work = prepare(size)
        tracemalloc.start()
        work()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return Growth(name=name, sizes=tuple(sizes), seconds=tuple(seconds), peak_bytes=tuple(peaks))


def entered(num_samples: int) -> Callable[[], object]:
    """Hold out a tenth, and enter an epoch in the middle: until the ids of the first batch are known."""

    def enter() -> object:
        train, _ = held_out(num_samples=num_samples, fraction=0.1)
        num_batches = len(train) // GLOBAL_BATCH
        requests = EpochRequests(
            order=epoch_order(seed=0, epoch=3, num_samples=len(train)),
            epoch=3,
            global_batch=GLOBAL_BATCH,
            batches=range(num_batches // 2, num_batches),
            slices=[range(GLOBAL_BATCH)],
            last_slices=[range(GLOBAL_BATCH)],
        )
        return train[requests[0][0]]

    return enter


class MadeRuns:
    """Run folders with records of any length, made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, num_records: int) -> RunFolder:
        """Return a run with this number of records in both files."""
        folder = RunFolder(self.folder / f"records-{num_records}" / "001")
        if not folder.path.exists():
            _make_run(folder, num_records)
        return folder

    def runs_dir(self, num_runs: int) -> Path:
        """Return a folder with this number of runs of a few records."""
        parent = self.folder / f"runs-{num_runs}"
        for number in range(0 if parent.exists() else num_runs):
            _make_run(RunFolder(parent / f"run-{number}" / "001"), 5)
        list_runs(parent)  # writes the index
        return parent


def _make_run(folder: RunFolder, num_records: int) -> None:
    folder.rank(0).parent.mkdir(parents=True)
    write_config(Config().resolved(), folder.config)
    folder.environment.write_text(json.dumps([{"time": 1.7e9, "world_size": 1}]))
    state = {"state": "FINISHED", "rank": 0, "host": "h", "pid": 1, "time": 1.7e9, "step": num_records}
    folder.rank(0).write_text(json.dumps(state))
    facts = {"first_step": 0, "hosts": ["h"], "threads": [1], "cores": [1], "mode": "single", "device": "cpu",
             "parameters": 1, "gradient_bytes": 4, "global_batch": 8}  # fmt: skip
    score = {"loss": 1.25, "top1": 0.512345, "top5": 0.912345, "samples": 128}
    seconds = {"seconds": [0.03], "last": [0], "cpu": [0.02], "cpu_wait": [0.0]}
    with folder.metrics.open("w") as metrics, folder.phases.open("w") as phases:
        phases.write(json.dumps({"kind": "ranks", **facts}) + "\n")
        for step in range(1, num_records + 1):
            line = {"kind": "step", "step": step, "epoch": 1, **score, "lr": 0.1, "samples_per_s": 4e3, "seconds": 0.03}
            metrics.write(json.dumps(line) + "\n")
            spent = {phase: [0.001234] for phase in PHASES}
            phases.write(json.dumps({"kind": "phases", "step": step, "steps": 1, **seconds, "phases": spent}) + "\n")


def _cut(folder: RunFolder, num_records: int) -> Callable[[], object]:
    def step_of(record: dict) -> int:
        return record.get("step", 0)

    return lambda: drop_later(folder.metrics, num_records, step_of=step_of, closes=lambda _record: True)


def main() -> None:
    """Print the growth of every piece of work."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    samples = [2**21, 10**7, 10**8] if quick else [10**7, 10**8, 10**9]
    records = [200, 400, 800] if quick else [8_000, 16_000, 32_000]
    runs = [200, 250, 300] if quick else [1000, 3000, 10_000]
    with tempfile.TemporaryDirectory() as scratch:
        made = MadeRuns(Path(scratch))
        print(measure("enter an epoch, samples", samples, entered), flush=True)
        print(measure("explain, lines", records, lambda n: lambda: split_time(read_phases(made.run(n)))), flush=True)
        print(measure("report, records", records, lambda n: lambda: read_run_data(made.run(n), "run")), flush=True)
        print(measure("resume, records", records, lambda n: _cut(made.run(n), n)), flush=True)
        print(measure("list runs, runs", runs, lambda n: partial(list_runs, made.runs_dir(n))))


if __name__ == "__main__":
    main()
