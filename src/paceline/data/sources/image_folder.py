"""Folders of images: one folder per class, in train, val and test, or in a single folder that is split."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.core.errors import DataError
from paceline.core.setting_types import SampleOrder
from paceline.core.units import count
from paceline.data.augment.pipeline import Augmentation
from paceline.data.decode import BadImageError
from paceline.data.on_demand import IMAGENET_MEAN, IMAGENET_STD, BadImages, OnDemand
from paceline.data.order import held_out
from paceline.data.source_files import read_regular, unreadable_file
from paceline.data.split import DataSet

ENDINGS = (".jpg", ".jpeg", ".png", ".webp")
TRAIN_NAMES, TEST_NAMES = ("train", "training"), ("test", "val", "valid", "validation", "testing")
TEST_FRACTION = 0.2
"""The fraction of a single folder's images that is held out for testing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageOptions:
    """How images are cropped and normalised, and what to do with unreadable ones."""

    size: int
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    bad_images: BadImages = "fail"
    order: SampleOrder = "auto"
    """How the test images of a single folder are chosen."""


class ImageFiles:
    """Image files by index. Their names are one array of bytes: a million names need no Python objects."""

    def __init__(self, root: Path, names: list[str]) -> None:
        self._root = root
        encoded = [os.fsencode(name) for name in names]
        self._names = np.frombuffer(b"".join(encoded), np.uint8)
        self._ends: NDArray[np.int64] = np.cumsum([len(name) for name in encoded], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ends)

    def name(self, index: int) -> str:
        """Return the path of an image."""
        start = self._ends[index - 1] if index else 0
        return str(self._root / os.fsdecode(self._names[start : self._ends[index]].tobytes()))

    def read(self, index: int) -> bytes:
        """Return the content of an image file."""
        try:
            return read_regular(Path(self.name(index)))
        except OSError as cause:
            raise BadImageError(cause.strerror or str(cause)) from cause


class Listing(NamedTuple):
    """The images below a folder: their names relative to it, and the class index of each."""

    root: Path
    names: list[str]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]


def open_image_folder(path: Path, options: ImageOptions, augmentation: Augmentation | None = None) -> DataSet:
    """Open PATH/train and PATH/test (or val, valid), or class folders in PATH with a fifth held out for testing."""
    train_folder, test_folder = find_split_folder(path, TRAIN_NAMES), find_split_folder(path, TEST_NAMES)
    if train_folder is not None and test_folder is not None:
        train, test = list_images(train_folder), list_images(test_folder)
        require_same_classes(train, test)
        return as_data_set(train, test, options, augmentation)
    if train_folder is not None or test_folder is not None:
        there, wanted = (train_folder, "test, val or valid") if test_folder is None else (test_folder, "train")
        raise DataError(
            f"{path} has {there.name if there else ''} but not {wanted}", hint=f"create {path}/{wanted.split(',')[0]}"
        )
    whole = list_images(path)
    keep, test_ids = held_out(num_samples=len(whole.names), fraction=TEST_FRACTION, order=options.order)
    if not len(test_ids):
        raise DataError(f"{path} has only {count(len(whole.names))} images, too few for a test split")
    return as_data_set(_some(whole, keep[:]), _some(whole, test_ids[:]), options, augmentation)


def as_data_set(
    train: Listing, test: Listing, options: ImageOptions, augmentation: Augmentation | None = None
) -> DataSet:
    """Return the data set of two listings."""
    train_split, test_split = (
        OnDemand(
            ImageFiles(listing.root, listing.names),
            torch.from_numpy(listing.labels),
            size=options.size,
            mean=options.mean,
            std=options.std,
            augmentation=extra,
            bad_images=options.bad_images,
        )
        for listing, extra in ((train, augmentation), (test, None))
    )
    return DataSet(
        train=train_split,
        test=test_split,
        classes=train.classes,
        image_shape=(3, options.size, options.size),
    )


def find_split_folder(path: Path, names: tuple[str, ...]) -> Path | None:
    """Return the first of these sub-folders that exists."""
    if not path.exists():
        raise DataError(f"{path} does not exist", hint="PATH must be the folder that contains train and test")
    try:
        folders = {entry.name: entry for entry in path.iterdir() if entry.is_dir()}
    except OSError as cause:
        raise unreadable_file(path, cause) from cause
    return next((folders[name] for name in names if name in folders), None)


def list_images(root: Path) -> Listing:
    """List the images of every class folder, in the order of their names; empty class folders are refused."""
    classes = _class_folders(root)
    names: list[str] = []
    seen = {_identity(folder) for folder in (root, *(root / name for name in classes))}
    labels: list[NDArray[np.int64]] = []
    for index, name in enumerate(classes):
        found = sorted(_images_below(root / name, root, seen))
        if not found:
            raise DataError(
                f"{root / name} has no image",
                hint=f"put {', '.join(ENDINGS)} files there, or remove it: rmdir {root / name}",
            )
        names += found
        labels.append(np.full(len(found), index, np.int64))
    return Listing(root, names, np.concatenate(labels), tuple(classes))


def require_same_classes(train: Listing, test: Listing) -> None:
    """Refuse a test split whose classes differ from the training split: its labels would be wrong."""
    if train.classes == test.classes:
        return
    only = [
        f"{', '.join(sorted(set(one.classes) - set(other.classes))[:5])} only in {one.root}"
        for one, other in ((train, test), (test, train))
        if set(one.classes) - set(other.classes)
    ]
    raise DataError(
        f"the classes of {train.root} and {test.root} differ: {'; '.join(only)}",
        hint="both need the same class folders",
    )


def _class_folders(root: Path) -> list[str]:
    try:
        names = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    except OSError as cause:
        raise unreadable_file(root, cause) from cause
    if not names:
        raise DataError(f"{root} has no class folders", hint="expected one folder per class, with its images inside")
    return names


def _images_below(folder: Path, root: Path, seen: set[tuple[int, int]]) -> Iterator[str]:
    """Yield the images below a class folder; a symbolic link to a folder that was seen before is refused."""

    def stop(cause: OSError) -> None:
        raise unreadable_file(Path(cause.filename or folder), cause) from cause

    for directory, _, files in os.walk(folder, onerror=stop, followlinks=True):
        below = Path(directory).relative_to(root)
        if Path(directory) != folder:
            _refuse_seen(Path(directory), seen)
        yield from (str(below / file) for file in files if file.lower().endswith(ENDINGS) and not file.startswith("."))


def _refuse_seen(directory: Path, seen: set[tuple[int, int]]) -> None:
    identity = _identity(directory)
    if identity in seen:
        raise DataError(
            f"{directory} is a symbolic link to a folder that is listed already", hint=f"remove it: rm {directory}"
        )
    seen.add(identity)


def _identity(folder: Path) -> tuple[int, int]:
    try:
        found = folder.stat()
    except OSError as cause:
        raise unreadable_file(folder, cause) from cause
    return found.st_dev, found.st_ino


def _some(listing: Listing, ids: NDArray[np.int64]) -> Listing:
    return listing._replace(names=[listing.names[index] for index in ids], labels=listing.labels[ids])
