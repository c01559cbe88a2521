"""An epoch of resnet20 on CIFAR-10: `paceline train` against the plain script, on all cores of this machine.

    python -m benchmarks.cifar_epoch --data-dir data [--steps 60] [--rounds 4]

Each turn is a separate process that trains `--steps` batches of 128; the first few are not counted, so neither start
is. Both compute the same network in fp32 with as many threads as there are cores; the plain script prepares its images
in two workers beside them, Paceline in the training process. Paceline writes all its records.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.interleave import show, take_turns

SKIP = 10
STEPS_OF_EPOCH = 391


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    steps = options.steps
    flags = ["--data-dir", str(options.data_dir), "--steps", str(steps)]
    variants = {
        "Paceline": lambda: paceline(flags),
        "plain script": lambda: plain(flags),
    }
    outcomes = take_turns(variants, rounds=options.rounds)
    whole = (steps - SKIP) / STEPS_OF_EPOCH
    show(f"resnet20 on CIFAR-10, an epoch of 50,000 by {steps - SKIP} steps", outcomes, per=whole, unit="s an epoch")
    print(f"  the plain script takes {outcomes[1].ratio:.2f}× as long")


def plain(flags: list[str]) -> float:
    """Return the seconds that the plain script counts."""
    command = [sys.executable, "-m", "benchmarks.plain_script", "--skip", str(SKIP), *flags]
    return json.loads(_output_of(command).splitlines()[-1])["seconds"]


def paceline(flags: list[str]) -> float:
    """Return the seconds of all intervals that Paceline recorded after the first one."""
    with tempfile.TemporaryDirectory() as folder:
        own = (
            f"--recipe cifar10-resnet20 --valid-split 0.001 --log-every {SKIP} --name epoch --runs-dir {folder}".split()
        )
        rarely = ["--eval-every", "9 epochs", "--save-every", "9 epochs"]
        _output_of([sys.executable, "-m", "paceline", "train", *own, *rarely, *flags])
        lines = (Path(folder) / "epoch" / "001" / "metrics.jsonl").read_text().splitlines()
    records = [record for record in map(json.loads, lines) if record["kind"] == "step"]
    return sum(record["seconds"] for record in records[1:])


def _output_of(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
