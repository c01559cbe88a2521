"""Augmentation from memory against torchvision, Pillow and timm, image for image, on one thread.

    python -m benchmarks.data_augment [--data-dir data] [--rounds 7 | --quick]

Takes CIFAR-10 from the data folder, or else noise. Variants take turns; CPU seconds per image, so that a busy machine
disturbs all of them alike. Paceline's batches of 128 come from its loader, as training gets them. torchvision and timm
must be installed; a torchvision wheel without its CPU operators is made importable first.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from benchmarks.cifar import load, make_torchvision_importable
from benchmarks.interleave import show_rates, take_turns
from paceline.data.augment.pipeline import Augmentation
from paceline.data.augment.policy import parse_policy
from paceline.data.in_memory import InMemory
from paceline.data.loader import load_batches

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
GLOBAL_BATCH = 128
RANDAUGMENT = "resized-crop,flip,rand-m9-mstd0.5-inc1,erase0.25"

Variant = Callable[[int], int]
"""Prepares images for one round and returns how many."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", dest="rounds", action="store_const", const=1, help="one round")
    options = parser.parse_args()
    torch.set_num_threads(1)
    make_torchvision_importable()
    images, labels, what = load(options.data_dir)
    with tempfile.TemporaryDirectory() as folder:
        write_pngs(images[:1024], Path(folder))
        compare(f"crop4,flip, {what}", crop_variants(images, labels, Path(folder)), options.rounds)
    compare(f"{RANDAUGMENT}, {what}", rand_variants(images, labels), options.rounds)


def compare(title: str, variants: dict[str, Variant], rounds: int) -> None:
    """Run the variants in turn and print images per second."""
    turns = {name: timed(variant) for name, variant in variants.items()}
    show_rates(f"{title}, normalised, batches of {GLOBAL_BATCH}", take_turns(turns, rounds=rounds))


def timed(variant: Variant) -> Callable[[], float]:
    """Return a function that runs the variant's next round and returns the CPU seconds of an image."""
    turns = iter(range(10**6))

    def run() -> float:
        start = time.process_time()
        num = variant(next(turns))
        return (time.process_time() - start) / num

    return run


def crop_variants(images: NDArray[np.uint8], labels: NDArray[np.int64], folder: Path) -> dict[str, Variant]:
    datasets, transforms = import_module("torchvision.datasets"), import_module("torchvision.transforms")
    transform = transforms.Compose(
        [
            transforms.RandomCrop(32, padding=4),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(MEAN, STD),
        ]
    )
    from_files = datasets.ImageFolder(str(folder), transform)
    return {
        "Paceline": paceline(images, labels, "crop4,flip"),
        "torchvision ImageFolder + PIL (PNG)": lambda _: collate(from_files[i][0] for i in range(len(from_files))),
        "torchvision transforms, PIL from memory": lambda _: collate(map(transform, pictures(images[:1024]))),
    }


def rand_variants(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> dict[str, Variant]:
    create_transform = import_module("timm.data.transforms_factory").create_transform
    posterize = ImageOps.posterize
    # Pillow 13 refuses what timm asks for at full strength, no bits at all.
    ImageOps.posterize = lambda image, bits: posterize(image, max(1, bits))
    transform: Callable = create_transform(
        32,
        is_training=True,
        color_jitter=0.4,
        auto_augment="rand-m9-mstd0.5-inc1",
        interpolation="bicubic",
        re_prob=0.25,
        re_mode="pixel",
        re_count=1,
        mean=MEAN,
        std=STD,
    )
    return {
        "Paceline": paceline(images, labels, RANDAUGMENT),
        "timm create_transform, PIL from memory": lambda _: collate(map(transform, pictures(images[:512]))),
    }


def paceline(images: NDArray[np.uint8], labels: NDArray[np.int64], policy: str) -> Variant:
    split = InMemory(
        torch.from_numpy(images),
        torch.from_numpy(labels),
        mean=MEAN,
        std=STD,
        augmentation=Augmentation(policy=parse_policy(policy), seed=0),
    )

    def variant(turn: int) -> int:
        order = np.random.default_rng(turn).permutation(len(images))[: 8 * 1024]
        requests = [(order[start : start + GLOBAL_BATCH], turn) for start in range(0, len(order), GLOBAL_BATCH)]
        return sum(len(batch.labels) for batch in load_batches(split, requests, workers=0, pin=False))

    return variant


def collate(samples: Iterator[torch.Tensor]) -> int:
    """Stack samples into batches, as a DataLoader without workers does."""
    num, pending = 0, []
    for sample in samples:
        pending.append(sample)
        num += 1
        if len(pending) == GLOBAL_BATCH:
            torch.stack(pending)
            pending.clear()
    return num


def pictures(images: NDArray[np.uint8]) -> Iterator[Image.Image]:
    for image in images:
        yield Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))


def write_pngs(images: NDArray[np.uint8], folder: Path) -> None:
    for number, picture in enumerate(pictures(images)):
        path = folder / f"class{number % 10}" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        picture.save(path)


if __name__ == "__main__":
    main()
