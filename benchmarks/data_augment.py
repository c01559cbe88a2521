"""Augmentation from memory against torchvision, Pillow and timm, image for image, on one thread.

    PYTHONPATH=src python benchmarks/data_augment.py --cifar10 FOLDER [--rounds 7]

FOLDER holds the binary batches of CIFAR-10 (without it, noise is used). Contenders take turns, one round each, and the
medians of CPU seconds per image are compared, so that a busy machine disturbs all of them alike. torchvision and timm
must be installed; a torchvision wheel without its CPU operators is made importable first.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from statistics import median

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from paceline.data.augment.pipeline import Augmentation
from paceline.data.augment.policy import parse_policy
from paceline.data.memory import InMemory

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
GLOBAL_BATCH = 128
RANDAUGMENT = "resized-crop,flip,rand-m9-mstd0.5-inc1,erase0.25"

Contender = Callable[[int], int]
"""Prepares images for one round and returns how many."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cifar10", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    make_torchvision_importable()
    images, labels = load(options.cifar10)
    with tempfile.TemporaryDirectory() as folder:
        write_pngs(images[:1024], Path(folder))
        compare("crop4,flip", crop_contenders(images, labels, Path(folder)), options.rounds)
    compare(RANDAUGMENT, rand_contenders(images, labels), options.rounds)


def compare(title: str, contenders: dict[str, Contender], rounds: int) -> None:
    """Run the contenders in turn and print images per second and the ratio of the first to each."""
    costs: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, contender in contenders.items():
            start = time.process_time()
            num = contender(turn)
            costs[name].append((time.process_time() - start) / num)
    ours, *_ = costs
    print(f"{title} + normalise, 32×32×3, one thread, median of {rounds} rounds")
    for name, seconds in costs.items():
        ratio = median(other / own for other, own in zip(seconds[1:], costs[ours][1:], strict=True))
        print(f"  {name:42s} {1 / median(seconds[1:]):9,.0f} images/s   {ratio:6.1f}×")


def crop_contenders(images: NDArray[np.uint8], labels: NDArray[np.int64], folder: Path) -> dict[str, Contender]:
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
        f"Paceline, batches of {GLOBAL_BATCH}": paceline(images, labels, "crop4,flip", GLOBAL_BATCH),
        "Paceline, batches of 512": paceline(images, labels, "crop4,flip", 512),
        "torchvision ImageFolder + PIL (PNG)": lambda _: collate(from_files[i][0] for i in range(len(from_files))),
        "torchvision transforms, PIL from memory": lambda _: collate(map(transform, pictures(images[:1024]))),
    }


def rand_contenders(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> dict[str, Contender]:
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
        f"Paceline, batches of {GLOBAL_BATCH}": paceline(images, labels, RANDAUGMENT, GLOBAL_BATCH),
        "Paceline, batches of 512": paceline(images, labels, RANDAUGMENT, 512),
        "timm create_transform, PIL from memory": lambda _: collate(map(transform, pictures(images[:512]))),
    }


def paceline(images: NDArray[np.uint8], labels: NDArray[np.int64], policy: str, batch: int) -> Contender:
    split = InMemory(
        torch.from_numpy(images),
        torch.from_numpy(labels),
        mean=MEAN,
        std=STD,
        augmentation=Augmentation(policy=parse_policy(policy), seed=0),
    )

    def contender(turn: int) -> int:
        order = np.random.default_rng(turn).permutation(len(images))[: 8 * 1024]
        for start in range(0, len(order), batch):
            split.fetch(order[start : start + batch], turn)
        return len(order)

    return contender


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


def load(folder: Path | None) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if folder is None:
        rng = np.random.default_rng(0)
        return rng.integers(0, 256, (50000, 3, 32, 32), dtype=np.uint8), rng.integers(0, 10, 50000)
    files = [folder / f"data_batch_{number}.bin" for number in range(1, 6)]
    rows = np.concatenate([np.fromfile(file, np.uint8).reshape(-1, 3073) for file in files])
    return np.ascontiguousarray(rows[:, 1:]).reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64)


def make_torchvision_importable() -> None:
    """Define the two operators that a torchvision wheel without CPU code looks for."""
    try:
        import_module("torchvision")
    except (RuntimeError, AttributeError):
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        globals()["_kept"] = library


if __name__ == "__main__":
    main()
