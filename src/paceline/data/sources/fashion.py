"""Fashion-MNIST: four idx files, compressed or not."""

import gzip
import hashlib
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.core.errors import DataError
from paceline.data.augment.pipeline import Augmentation
from paceline.data.in_memory import InMemory
from paceline.data.source_files import read_regular, unreadable_file
from paceline.data.sources.published import PublishedSet, Remote, first_existing
from paceline.data.split import DataSet

_SITE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_DEBIAN = Path("/usr/share/datasets/fashion-mnist")
_MD5 = {
    "train-images-idx3-ubyte": ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
    "train-labels-idx1-ubyte": ("25c81989df183df01b3e8a0aad5dffbe", "9018921c3c673c538a1fc5bad174d6f9"),
    "t10k-images-idx3-ubyte": ("bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
    "t10k-labels-idx1-ubyte": ("bb300cfdad3c16e7a12a480ee83cd310", "15d484375f8d13e6eb1aabb0c3f46965"),
}
"""The md5 of each file as published, and of its content: other copies are compressed differently."""

FASHION = PublishedSet(
    name="fashion-mnist",
    title="Fashion-MNIST: greyscale images of clothes in ten classes",
    num_train=60_000,
    num_test=10_000,
    num_classes=10,
    image="28×28×1",
    download_bytes=30_878_645,
    remotes=tuple(Remote(file=f"{name}.gz", md5=md5, url=f"{_SITE}/{name}.gz") for name, (md5, _) in _MD5.items()),
    page="https://github.com/zalandoresearch/fashion-mnist",
)
CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
MEAN, STD = (0.2860,), (0.3530,)
IMAGE_DIMENSIONS = 3
LARGEST_FILE = 16 + 60_000 * 28 * 28
"""Bytes of the largest of the four files."""


def open_fashion_mnist(data_dir: Path, augmentation: Augmentation | None = None) -> DataSet:
    """Read Fashion-MNIST from the data folder, or from where Debian's package puts it."""
    train = _open_split(data_dir, "train", augmentation)
    test = _open_split(data_dir, "t10k", None)
    return DataSet(train=train, test=test, classes=CLASSES, image_shape=(1, 28, 28))


def find_fashion_mnist(data_dir: Path) -> Path | None:
    """Return the folder that has the files, or None."""
    image_file = _find(data_dir, "train-images-idx3-ubyte")
    return None if image_file is None else image_file.parent


def _open_split(data_dir: Path, split: str, augmentation: Augmentation | None) -> InMemory:
    images, image_path = _read(data_dir, f"{split}-images-idx3-ubyte")
    labels, label_path = _read(data_dir, f"{split}-labels-idx1-ubyte")
    if len(images) != len(labels):
        raise _damaged(label_path, f"it has {len(labels)} labels for {len(images)} images of {image_path.name}")
    return InMemory(
        torch.from_numpy(images[:, None]),
        torch.from_numpy(labels.astype(np.int64)),
        mean=MEAN,
        std=STD,
        augmentation=augmentation,
    )


def _find(data_dir: Path, name: str) -> Path | None:
    folders = (*FASHION.search_folders(data_dir), data_dir / "FashionMNIST" / "raw", _DEBIAN)
    return first_existing(folder / file for folder in folders for file in (name, f"{name}.gz"))


def _read(data_dir: Path, name: str) -> tuple[NDArray[np.uint8], Path]:
    path = _find(data_dir, name)
    if path is None:
        raise FASHION.missing(data_dir)
    try:
        raw = BytesIO(read_regular(path))
        with gzip.open(raw) if path.suffix == ".gz" else raw as file:
            content = file.read(LARGEST_FILE + 1)  # a few kB may expand to gigabytes
    except (gzip.BadGzipFile, EOFError, zlib.error) as cause:
        raise _damaged(path, str(cause)) from cause
    except OSError as cause:
        raise unreadable_file(path, cause) from cause
    if len(content) > LARGEST_FILE:
        raise _damaged(path, f"it has more than {LARGEST_FILE:,} bytes")
    array = parse_idx(content, path)
    found, expected = hashlib.md5(content, usedforsecurity=False).hexdigest(), _MD5[name][1]
    if found != expected:
        raise _damaged(path, f"the md5 of its content is {found}, expected {expected}")
    return array, path


def parse_idx(content: bytes, path: Path) -> NDArray[np.uint8]:
    """Return the bytes of an idx file in the shape that its header gives."""
    dimensions = content[3] if len(content) > 3 else 0
    if content[:3] != b"\0\0\x08" or not 1 <= dimensions <= IMAGE_DIMENSIONS:
        raise _damaged(path, "it does not start like an idx file of bytes")
    header = 4 + 4 * dimensions
    shape = np.frombuffer(content[4:header], ">u4").tolist()
    if len(shape) != dimensions or len(content) != header + int(np.prod(shape)):
        raise _damaged(path, f"it has {len(content)} bytes; its header says {header + int(np.prod(shape))}")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape).copy()


def _damaged(path: Path, problem: str) -> DataError:
    return DataError(
        f"{path} is damaged: {problem}", hint=f"fetch it again: rm {path}; paceline data fetch fashion-mnist"
    )
