"""Accuracy over seeds, to see whether a setting is as good as another within noise.

    python -m benchmarks.accuracy bitwise DATA_DIR --write     # --exact bitwise beside stock DDP, on real CIFAR-10
    python -m benchmarks.accuracy batch-norm --write           # what batch norm sees on 1, 2 and 4 ranks, on digits

Short recipes, so that the runs of a table take minutes. The results are in docs/results.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import TensorDataset

from paceline.records.environment import cpu_name

RESULTS = Path(__file__).parents[1] / "docs" / "results"
NUM_TRAINED = 10_000
DATA_DIR = "CIFAR10_DIR"


@dataclass(frozen=True, kw_only=True, slots=True)
class Study:
    """Variants of one recipe."""

    title: str
    recipe: str
    settings: tuple[str, ...]
    variants: dict[str, tuple[str, ...]]
    seeds: int
    file: str


STUDIES = {
    "bitwise": Study(
        title="Accuracy of bitwise training",
        recipe=f"cnn on the first {NUM_TRAINED:,} training\nimages of CIFAR-10, 3 epochs, batch 128, sgd, no "
        "augmentation; accuracy in percent over all 10,000 test images.\n"
        "Bitwise runs on one rank: two ranks give the same bits",
        settings=("--data", f"{__file__}:images", "--model", "cnn", "--epochs", "3", "--eval-every", "3"),
        variants={"ddp, 2 ranks": ("--nproc", "2"), "bitwise, 1 rank": ("--exact", "bitwise")},
        seeds=5,
        file="exact-accuracy.md",
    ),
    "batch-norm": Study(
        title="Accuracy by what batch norm sees",
        recipe="resnet20 on digits, 10 epochs, batch\n128, sgd; accuracy in percent over the 360 test images",
        settings=("--data", "digits", "--model", "resnet20", "--epochs", "10", "--eval-every", "10"),
        variants={
            "1 rank: all 128 samples": (),
            "2 ranks, `local`: 64 samples": ("--nproc", "2"),
            "4 ranks, `local`: 32 samples": ("--nproc", "4"),
            "2 ranks, `sync`: all 128 samples": ("--nproc", "2", "--batch-norm", "sync"),
            "`--exact bitwise`: shards of 32": ("--exact", "bitwise"),
        },
        seeds=10,
        file="batch-norm.md",
    ),
}


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


def accuracy(study: Study, variant: str, seed: int, data_dir: Path, runs_dir: Path) -> float:
    """Train one run and return its test accuracy in percent."""
    settings = [*study.settings, "-b", "128", "--seed", str(seed), "--valid-split", "0", "--threads", "1"]
    settings += ["--device", "cpu", "--track", "none", "--runs-dir", str(runs_dir), "--name", f"{seed}"]
    command = [sys.executable, "-m", "paceline", "train", *settings, *study.variants[variant]]
    subprocess.run(command, check=True, env=os.environ | {DATA_DIR: str(data_dir.resolve())}, stdout=subprocess.DEVNULL)
    (metrics,) = (runs_dir / str(seed)).glob("*/metrics.jsonl")
    records = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    return next(100 * record["top1"] for record in records if record.get("split") == "test")


def page(name: str, study: Study, found: dict[str, list[float]]) -> str:
    """Return the table with means and deviations, and how far each variant is from the first."""
    seeds = range(len(next(iter(found.values()))))
    first = next(iter(found.values()))
    return "\n".join([
        f"# {study.title}",
        "",
        f"Written by `python -m benchmarks.accuracy {name}`: {study.recipe}.",
        f"{cpu_name()}, torch {torch.__version__}.",
        "",
        f"| | {' | '.join(f'seed {seed}' for seed in seeds)} | mean | deviation | from the first |",
        "|---|" + "---|" * (len(seeds) + 3),
        *(row(variant, values, first) for variant, values in found.items()),
        "",
        "The last column is the difference of the means, ± its standard error.",
        "",
    ])  # fmt: skip


def row(variant: str, values: list[float], first: list[float]) -> str:
    """Return the row of a variant."""
    apart = statistics.mean(values) - statistics.mean(first)
    error = math.sqrt(sum(statistics.variance(group) / len(group) for group in (first, values)))
    cells = [f"{value:.2f}" for value in (*values, statistics.mean(values), statistics.stdev(values))]
    cells.append("" if values is first else f"{apart:+.2f} ± {error:.2f}")
    return f"| {variant} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare accuracies over seeds")
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("data_dir", type=Path, nargs="?", default=Path(), help="folder with cifar-10-batches-bin")
    parser.add_argument("--seeds", type=int, help="2 or more")
    parser.add_argument("--write", action="store_true", help="write the page in docs/results")
    options = parser.parse_args()
    study = STUDIES[options.study]
    found: dict[str, list[float]] = {variant: [] for variant in study.variants}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seeds or study.seeds):
            for number, variant in enumerate(study.variants):
                value = accuracy(study, variant, seed, options.data_dir, Path(folder) / str(number))
                found[variant].append(value)
                print(f"seed {seed}, {variant}: {value:.2f}%", flush=True)
    text = page(options.study, study, found)
    print(text)
    if options.write:
        (RESULTS / study.file).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
