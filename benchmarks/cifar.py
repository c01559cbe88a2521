"""The training images of CIFAR-10 for benchmarks, and a torchvision that can be imported."""

from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.core.errors import DataError
from paceline.data.in_memory import InMemory
from paceline.data.sources.cifar import open_cifar10

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


def load(data_dir: Path) -> tuple[Images, Labels, str]:
    """Return the images (N×C×H×W), their labels and what they are: the real ones where they are found, else noise."""
    try:
        train = open_cifar10(data_dir).train
    except DataError:
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (50000, 3, 32, 32), dtype=np.uint8)
        return images, rng.integers(0, 10, 50000), f"noise (no CIFAR-10 in {data_dir})"
    assert isinstance(train, InMemory)
    return train.images.numpy(), train.labels.numpy(), "CIFAR-10"


def make_torchvision_importable() -> None:
    """Define the two operators that a torchvision wheel without CPU code looks for."""
    try:
        import_module("torchvision")
    except (RuntimeError, AttributeError):
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        globals()["_kept"] = library
