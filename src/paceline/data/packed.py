"""Reads pack files: mapped into memory, checked when opened, every image checked again when it is read."""

import json
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.core.errors import DataError
from paceline.core.units import count
from paceline.data.augment.pipeline import Augmentation
from paceline.data.checksum import unreadable
from paceline.data.decode import BadImageError, decode
from paceline.data.decoded import BadImages, Decoded
from paceline.data.memory import InMemory
from paceline.data.packfile import ENTRY, HEAD_SIZE, PARTS, VERSION, Head, parse_head
from paceline.data.split import DataSet, Split

LARGEST_USUAL = 224
IN_MEMORY_BYTES = 1 << 30
"""Packs of pixels up to this size are read at once and live in memory."""


class PackIndex(NamedTuple):
    """What a pack file says about itself."""

    entries: NDArray
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int | None
    keep: str


class _View(NamedTuple):
    """How a part is shown."""

    size: int
    augmentation: Augmentation | None
    bad_images: BadImages


class PackedImages:
    """The images of one part of a pack file."""

    def __init__(self, path: Path, entries: NDArray) -> None:
        self._path = path
        self._entries = entries
        self._map: NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __getstate__(self) -> dict[str, Any]:
        """A worker process maps the file itself instead of getting its bytes."""
        return self.__dict__ | {"_map": None}

    def name(self, number: int) -> str:
        """Return the file and the number of the image in its part."""
        return f"{self._path}: image {number}"

    def read(self, number: int) -> bytes:
        """Return the bytes of an image, if they are the ones that were written."""
        if self._map is None:
            self._map = np.memmap(self._path, np.uint8, "r")
        entry = self._entries[number]
        start = int(entry["start"])
        data = self._map[start : start + int(entry["length"])].tobytes()
        if zlib.crc32(data) != int(entry["crc"]):
            raise BadImageError("its checksum is wrong: the file is damaged")
        return data


def open_packed(
    path: Path, size: int | None = None, augmentation: Augmentation | None = None, bad_images: BadImages = "fail"
) -> DataSet:
    """Open a pack file; the size defaults to that of its pixels, or to 224 where its JPEG files are not smaller."""
    index = read_index(path)
    wanted = size if size is not None else _usual_size(index)
    train = _part(path, index, 0, _View(wanted, augmentation, bad_images))
    test = _part(path, index, 1, _View(wanted, None, bad_images))
    return DataSet(train=train, test=test, classes=index.classes, image_shape=(3, wanted, wanted))


def _usual_size(index: PackIndex) -> int:
    if index.size is None:
        return LARGEST_USUAL
    return index.size if index.keep == "pixels" else min(index.size, LARGEST_USUAL)


def read_index(path: Path) -> PackIndex:
    """Check a pack file and return its index; every kind of damage has a message of its own."""
    try:
        with path.open("rb") as file:
            start = file.read(HEAD_SIZE)
            head = _checked_head(path, start)
            file.seek(head.index_start)
            tail = file.read(head.file_size - head.index_start)
    except OSError as cause:
        raise unreadable(path, cause) from cause
    if zlib.crc32(tail) != head.crc:
        raise _damaged(path, "the checksum of its index is wrong")
    length = head.notes_start - head.index_start
    notes = json.loads(tail[length:])
    return PackIndex(
        np.frombuffer(tail[:length], ENTRY),
        tuple(notes["classes"]),
        tuple(notes["mean"]),
        tuple(notes["std"]),
        notes["size"],
        notes["keep"],
    )


def _checked_head(path: Path, start: bytes) -> Head:
    head = parse_head(start)
    if head is None:
        raise DataError(f"{path} is not a pack file", hint="make one: paceline data pack folder:PATH OUT --size 256")
    if head.version == 0:
        raise _damaged(path, "its first bytes are wrong, or it was never finished")
    if head.version != VERSION:
        raise DataError(
            f"{path} is a pack of version {head.version}; this Paceline reads version {VERSION}",
            hint="pack the data set again, or use the Paceline that made it",
        )
    found = path.stat().st_size
    if found != head.file_size:
        raise _damaged(path, f"it has {count(found)} bytes instead of {count(head.file_size)}")
    return head


def verify(path: Path) -> int:
    """Read every image and return how many have a wrong checksum."""
    images = PackedImages(path, read_index(path).entries)
    return sum(not _is_whole(images, number) for number in range(len(images)))


def _is_whole(images: PackedImages, number: int) -> bool:
    try:
        images.read(number)
    except BadImageError:
        return False
    return True


def _damaged(path: Path, problem: str) -> DataError:
    return DataError(f"{path} is damaged: {problem}", hint="pack the data set again, or copy the file again")


def _part(path: Path, index: PackIndex, part: int, view: _View) -> Split:
    """Return one part, in memory when it is pixels of the right size and small."""
    entries = index.entries[index.entries["part"] == part]
    if not len(entries):
        raise DataError(f"{path} has no images for {PARTS[part]}", hint="pack the data set again")
    images = PackedImages(path, entries)
    labels = torch.from_numpy(entries["label"].astype(np.int64))
    if index.keep == "pixels" and view.size == index.size and int(entries["length"].sum()) <= IN_MEMORY_BYTES:
        pixels = _pixels(images, view.size)
        return InMemory(pixels, labels, mean=index.mean, std=index.std, augmentation=view.augmentation)
    return Decoded(
        images,
        labels,
        size=view.size,
        mean=index.mean,
        std=index.std,
        augmentation=view.augmentation,
        bad_images=view.bad_images,
    )


def _pixels(images: PackedImages, size: int) -> torch.Tensor:
    """Read all images of a pack of pixels."""
    pixels = np.empty((len(images), 3, size, size), np.uint8)
    for number in range(len(images)):
        try:
            pixels[number] = decode(images.read(number)).transpose(2, 0, 1)
        except BadImageError as cause:
            hint = "pack the data set again, or copy the file again"
            raise DataError(f"{images.name(number)}: {cause}", hint=hint) from cause
    return torch.from_numpy(pixels)
