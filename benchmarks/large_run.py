"""How long explaining a large run takes: a run folder of 1,000 ranks × 10,000 steps is made up, then read.

    python -m benchmarks.large_run [--ranks 1000] [--steps 10000] [--keep FOLDER]

Prints seconds and peak memory of `paceline report` and `paceline explain` on it; both should stay below 10 s and 1 GB.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from paceline.core.config import Config
from paceline.core.load import write_config
from paceline.records.folder import RunFolder
from paceline.records.phases import OTHER_PHASES, STEP_PHASES, PhaseRecord, RankFacts, phases_as_json
from paceline.records.profile import LinkPoint, Profile, ProfiledBucket, RankSteps, write_profile
from paceline.records.writer import write_json
from paceline.trackers.files import RANKS_PER_STEP

MEANS = {"data": 2e-3, "copy": 1e-3, "forward": 0.08, "backward": 0.16, "communication": 0.02, "update": 4e-3}
PER_NODE = 8
PARAMETERS = 25_557_032
BUCKETS = 6
PAIRS = 12


def make_run(path: Path, *, ranks: int, steps: int) -> RunFolder:
    """Write a run of many ranks, as a run itself would; a record of metrics for every step, which is the worst case."""
    folder = RunFolder(path)
    folder.rank(0).parent.mkdir(parents=True)
    write_config(Config(model="resnet50", data="imagenet", global_batch=32 * ranks).resolved(), folder.config)
    write_json(folder.environment, [{"time": 1.7e9, "host": "node0000", "world_size": ranks, "train_samples": 1281167}])
    _write_metrics(folder, steps)
    _write_phases(folder, ranks, steps)
    _write_profile(folder, ranks)
    state = {"state": "FINISHED", "rank": 0, "world_size": ranks, "host": "node0000", "pid": 1, "time": 1.7e9}
    write_json(folder.rank(0), state | {"step": steps})
    return folder


def _write_metrics(folder: RunFolder, steps: int) -> None:
    noise = np.random.default_rng(0).normal(scale=0.05, size=steps)
    with folder.metrics.open("w") as lines:
        for step in range(1, steps + 1):
            loss = 7 * step**-0.25 + float(noise[step - 1])
            score = {"loss": loss, "top1": 1 - 1 / (1 + step / 900), "top5": 1.0, "samples": 32000}
            record = {"kind": "step", "step": step, "epoch": step // 40 + 1, **score, "lr": 0.1, "samples_per_s": 1e5}
            lines.write(json.dumps(record) + "\n")


def _write_phases(folder: RunFolder, ranks: int, steps: int) -> None:
    random = np.random.default_rng(1)
    hosts = [f"node{rank // PER_NODE:04d}" for rank in range(ranks)]
    facts = RankFacts(
        first_step=0, hosts=hosts, threads=[8] * ranks, cores=[64] * ranks, mode="ddp", device="cuda",
        parameters=PARAMETERS, gradient_bytes=4 * PARAMETERS, global_batch=32 * ranks,
    )  # fmt: skip
    own = random.normal(1, 0.02, ranks)
    own[ranks // 3] = 1.3  # one rank that everybody waits for
    interval = max(50, -(-ranks // RANKS_PER_STEP))
    with folder.phases.open("w") as lines:
        lines.write(json.dumps(phases_as_json(facts)) + "\n")
        for step in range(interval, steps + 1, interval):
            phases = {phase: mean * interval * own * random.normal(1, 0.01, ranks) for phase, mean in MEANS.items()}
            busy = sum(phases.values(), start=np.zeros(ranks))
            phases["straggler"] = busy.max() - busy
            phases |= {phase: np.full(ranks, 0.1) for phase in OTHER_PHASES}
            whole = sum(phases.values(), start=np.zeros(ranks))
            record = PhaseRecord(
                step=step, steps=interval, seconds=_rounded(whole),
                phases={phase: _rounded(phases[phase]) for phase in (*STEP_PHASES, *OTHER_PHASES)},
                last=[interval if rank == ranks // 3 else 0 for rank in range(ranks)], cpu=_rounded(whole),
                cpu_wait=[0.0] * ranks,
            )  # fmt: skip
            lines.write(json.dumps(phases_as_json(record)) + "\n")


def _write_profile(folder: RunFolder, ranks: int) -> None:
    parts = {name: (MEANS.get(name, MEANS["communication"]),) * PAIRS for name in RankSteps.__slots__ if name != "step"}
    steps = RankSteps(**parts, step=(sum(values[0] for values in parts.values()),) * PAIRS)
    buckets = tuple(
        ProfiledBucket(bytes=4 * PARAMETERS // BUCKETS, ready=at, ready_real=at, done_real=at + 0.03)
        for at in np.linspace(0.02, MEANS["backward"], BUCKETS).tolist()
    )
    profile = Profile(
        world_size=ranks, ranks_per_node=(PER_NODE,) * (ranks // PER_NODE), mode="ddp", backend="nccl", device="cuda",
        model="resnet50", precision="fp32", compress="none", parameters=PARAMETERS, gradient_bytes=4 * PARAMETERS,
        global_batch=32 * ranks, samples_per_rank=32, accumulate=1, threads=8, free=(steps,) * ranks,
        real=(steps,) * ranks, buckets=buckets, link=(LinkPoint(bytes=64_000_000, in_flight=2, samples=(0.02,)),),
        latency=2e-5, bandwidth=1.1e10,
    )  # fmt: skip
    write_profile(folder, profile)


def _rounded(values: np.ndarray) -> list[float]:
    return values.round(6).tolist()


def time_command(*args: str) -> tuple[float, float]:
    """Return the seconds and the peak memory in MB of a command."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "paceline", *args], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"paceline {' '.join(args)} failed")
    return time.perf_counter() - start, usage.ru_maxrss / 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--keep", type=Path, help="where to leave the run folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = (options.keep or Path(scratch)) / "large" / "001"
        make_run(path, ranks=options.ranks, steps=options.steps)
        written = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        print(f"{options.ranks:,} ranks × {options.steps:,} steps: {written / 1e6:.0f} MB of records")
        for command in ("report", "explain"):
            seconds, memory = time_command(command, str(path))
            print(f"  paceline {command:<8} {seconds:5.1f} s  {memory:5.0f} MB")


if __name__ == "__main__":
    main()
