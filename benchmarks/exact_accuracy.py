"""Accuracy of `--exact bitwise` beside stock DDP over seeds, on real CIFAR-10: the same within noise.

    python -m benchmarks.exact_accuracy DATA_DIR --write     # docs/results/exact-accuracy.md

A short recipe, so that ten runs take minutes: part of the training images, a few epochs of a small network. DDP runs on
two ranks. Bitwise runs on one rank: its result has the same bits on two.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

from paceline.records.environment import cpu_name

RESULT = Path(__file__).parents[1] / "docs" / "results" / "exact-accuracy.md"
NUM_TRAINED, EPOCHS, MODEL, BATCH = 10_000, 3, "cnn", 128
DATA_DIR = "CIFAR10_DIR"
VARIANTS = {"ddp, 2 ranks": ("--nproc", "2"), "bitwise, 1 rank": ("--exact", "bitwise")}


def images() -> tuple[TensorDataset, TensorDataset]:
    """Return the first training images, and all test images."""
    folder = Path(os.environ[DATA_DIR]) / "cifar-10-batches-bin"
    train = [read(folder / f"data_batch_{number}.bin") for number in range(1, 1 + math.ceil(NUM_TRAINED / 10_000))]
    pixels, labels = (torch.cat(parts)[:NUM_TRAINED] for parts in zip(*train, strict=True))
    return TensorDataset(pixels, labels), TensorDataset(*read(folder / "test_batch.bin"))


def read(file: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the images of a batch file, normalised, and their labels."""
    rows = torch.from_numpy(np.fromfile(file, dtype=np.uint8)).view(-1, 1 + 3 * 32 * 32)
    return (rows[:, 1:].view(-1, 3, 32, 32).float() / 255 - 0.47) / 0.25, rows[:, 0].long()


def accuracy(variant: str, seed: int, data_dir: Path, runs_dir: Path) -> float:
    """Train one run and return its test accuracy in percent."""
    settings = ["--data", f"{__file__}:images", "--model", MODEL, "--epochs", str(EPOCHS), "-b", str(BATCH)]
    settings += ["--seed", str(seed), "--valid-split", "0", "--eval-every", str(EPOCHS), "--threads", "1"]
    settings += ["--device", "cpu", "--track", "none", "--runs-dir", str(runs_dir), "--name", f"{seed}"]
    command = [sys.executable, "-m", "paceline", "train", *settings, *VARIANTS[variant]]
    subprocess.run(command, check=True, env=os.environ | {DATA_DIR: str(data_dir.resolve())}, stdout=subprocess.DEVNULL)
    (metrics,) = (runs_dir / str(seed)).glob("*/metrics.jsonl")
    records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    return next(100 * record["top1"] for record in records if record.get("split") == "test")


def page(found: dict[str, list[float]]) -> str:
    """Return the table with means and deviations."""
    seeds = range(len(next(iter(found.values()))))
    rows = [
        f"| {name} | {' | '.join(f'{value:.2f}' for value in values)} | "
        f"{statistics.mean(values):.2f} | {statistics.stdev(values):.2f} |"
        for name, values in found.items()
    ]
    first, second = found.values()
    apart = statistics.mean(second) - statistics.mean(first)
    error = math.sqrt(sum(statistics.variance(values) / len(values) for values in (first, second)))
    return "\n".join([
        "# Accuracy of bitwise training",
        "",
        f"Written by `python -m benchmarks.exact_accuracy`: {MODEL} on the first {NUM_TRAINED:,} training images of",
        f"CIFAR-10, {EPOCHS} epochs, batch {BATCH}, sgd, no augmentation; accuracy in percent over all 10,000 test",
        f"images. {cpu_name()}, torch {torch.__version__}.",
        "",
        f"| | {' | '.join(f'seed {seed}' for seed in seeds)} | mean | deviation |",
        "|---|" + "---|" * (len(seeds) + 2),
        *rows,
        "",
        f"The means differ by {apart:+.2f}, with a standard error of {error:.2f}.",
        "",
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare accuracies over seeds")
    parser.add_argument("data_dir", type=Path, help="folder with cifar-10-batches-bin")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    options = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in VARIANTS}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seeds):
            for number, name in enumerate(VARIANTS):
                found[name].append(accuracy(name, seed, options.data_dir, Path(folder) / str(number)))
                print(f"seed {seed}, {name}: {found[name][-1]:.2f}%", flush=True)
    print(page(found))
    if options.write:
        RESULT.write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
