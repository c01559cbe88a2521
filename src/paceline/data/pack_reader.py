"""Reads pack files: memory-mapped, checked when opened, and every image checked when it is read."""

import zlib
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.core.errors import DataError
from paceline.core.units import count
from paceline.data.augment.pipeline import Augmentation
from paceline.data.decode import BadImageError, decode
from paceline.data.in_memory import InMemory
from paceline.data.on_demand import BadImages, OnDemand
from paceline.data.pack_format import ENTRY, HEADER_SIZE, SPLITS, VERSION, Header, Keep, parse_header
from paceline.data.source_files import unreadable_file
from paceline.data.split import DataSet, Split
from paceline.records.schema import Between, parse_as

LARGEST_USUAL = 224
NUM_CHANNELS = 3
IN_MEMORY_BYTES = 1 << 30
"""Packs of pixels up to this size are read into memory."""


class PackIndex(NamedTuple):
    """The index and notes of a pack file."""

    entries: NDArray
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    size: int | None
    keep: str


class _Notes(TypedDict):
    classes: list[str]
    mean: list[float]
    std: list[float]
    size: Annotated[int, Between(1, 2**20)] | None
    keep: Keep


class _SplitOptions(NamedTuple):
    """How the images of a split are decoded and augmented."""

    size: int
    augmentation: Augmentation | None
    bad_images: BadImages


class PackedImages:
    """The images of one split of a pack file."""

    def __init__(self, path: Path, entries: NDArray) -> None:
        self._path = path
        self._entries = entries
        self._map: NDArray[np.uint8] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __getstate__(self) -> dict[str, Any]:
        """A worker process maps the file itself instead of receiving its bytes."""
        return self.__dict__ | {"_map": None}

    def name(self, index: int) -> str:
        """Return the file and the index of the image in its split."""
        return f"{self._path}: image {index}"

    def read(self, index: int) -> bytes:
        """Return the bytes of an image after checking them."""
        if self._map is None:
            self._map = np.memmap(self._path, np.uint8, "r")
        entry = self._entries[index]
        start = int(entry["start"])
        data = self._map[start : start + int(entry["length"])].tobytes()
        if zlib.crc32(data) != int(entry["crc"]):
            raise BadImageError("its checksum is wrong: the file is damaged")
        return data


def open_packed(
    path: Path, size: int | None = None, augmentation: Augmentation | None = None, bad_images: BadImages = "fail"
) -> DataSet:
    """Open a pack file; the size defaults to that of its pixels, or for JPEG files to at most 224."""
    index = read_index(path)
    wanted = size if size is not None else _usual_size(index)
    train = _open_split(path, index, 0, _SplitOptions(wanted, augmentation, bad_images))
    test = _open_split(path, index, 1, _SplitOptions(wanted, None, bad_images))
    return DataSet(train=train, test=test, classes=index.classes, image_shape=(3, wanted, wanted))


def _usual_size(index: PackIndex) -> int:
    if index.size is None:
        return LARGEST_USUAL
    return index.size if index.keep == "pixels" else min(index.size, LARGEST_USUAL)


def read_index(path: Path) -> PackIndex:
    """Check a pack file and return its index; each kind of damage has its own message."""
    try:
        with path.open("rb") as file:
            start = file.read(HEADER_SIZE)
            header = _checked_header(path, start)
            file.seek(header.index_start)
            tail = file.read(header.file_size - header.index_start)
    except OSError as cause:
        raise unreadable_file(path, cause) from cause
    if zlib.crc32(tail) != header.crc:
        raise _damaged(path, "the checksum of its index is wrong")
    length = header.notes_start - header.index_start
    try:
        notes = parse_as(_Notes, tail[length:])
        entries = np.frombuffer(tail[:length], ENTRY)
    except ValueError as cause:
        raise _damaged(path, f"its notes or its index are wrong: {cause}") from cause
    if {len(notes["mean"]), len(notes["std"])} != {NUM_CHANNELS}:
        raise _damaged(path, f"its mean or deviation does not have {NUM_CHANNELS} channels")
    _check_entries(path, entries, header, len(notes["classes"]))
    return PackIndex(
        entries, tuple(notes["classes"]), tuple(notes["mean"]), tuple(notes["std"]), notes["size"], notes["keep"]
    )


def _check_entries(path: Path, entries: NDArray, header: Header, num_classes: int) -> None:
    """Refuse an index with labels of no class (torch ignores -100 without a warning), or bytes beyond the images."""
    ends = entries["start"] + entries["length"].astype(np.uint64)
    wrong = {
        f"a label that is not between 0 and {num_classes - 1}": ~np.isin(entries["label"], np.arange(num_classes)),
        "an unknown split": ~np.isin(entries["split"], np.arange(len(SPLITS))),
        "bytes outside of the images": (ends > header.index_start) | (entries["start"] > ends),
    }
    for problem, where in wrong.items():
        if where.any():
            raise _damaged(path, f"image {int(np.argmax(where))} has {problem}")


def _checked_header(path: Path, start: bytes) -> Header:
    header = parse_header(start)
    if header is None:
        raise DataError(
            f"{path} is not a pack file", hint="to create one: paceline data pack folder:PATH OUT --size 256"
        )
    if header.version == 0:
        raise _damaged(path, "its header is wrong, or it was never finished")
    if header.version != VERSION:
        raise DataError(
            f"{path} is a pack of version {header.version}; this Paceline reads version {VERSION}",
            hint="pack the data set again, or use the version of Paceline that wrote it",
        )
    found = path.stat().st_size
    if found != header.file_size:
        raise _damaged(path, f"it has {count(found)} bytes instead of {count(header.file_size)}")
    return header


def count_damaged(path: Path) -> int:
    """Read every image and return the number of wrong checksums."""
    images = PackedImages(path, read_index(path).entries)
    return sum(not _is_whole(images, index) for index in range(len(images)))


def _is_whole(images: PackedImages, index: int) -> bool:
    try:
        images.read(index)
    except BadImageError:
        return False
    return True


def _damaged(path: Path, problem: str) -> DataError:
    return DataError(f"{path} is damaged: {problem}", hint="pack the data set again, or copy the file again")


def _open_split(path: Path, index: PackIndex, split: int, options: _SplitOptions) -> Split:
    """Return one split, in memory if it is small and its pixels have the right size."""
    entries = index.entries[index.entries["split"] == split]
    if not len(entries):
        raise DataError(f"{path} has no {SPLITS[split]} images", hint="pack the data set again")
    images = PackedImages(path, entries)
    labels = torch.from_numpy(entries["label"].astype(np.int64))
    if index.keep == "pixels" and options.size == index.size and int(entries["length"].sum()) <= IN_MEMORY_BYTES:
        pixels = _pixels(images, options.size)
        return InMemory(pixels, labels, mean=index.mean, std=index.std, augmentation=options.augmentation)
    return OnDemand(
        images,
        labels,
        size=options.size,
        mean=index.mean,
        std=index.std,
        augmentation=options.augmentation,
        bad_images=options.bad_images,
    )


def _pixels(images: PackedImages, size: int) -> torch.Tensor:
    """Read all images of a pack of pixels."""
    pixels = np.empty((len(images), 3, size, size), np.uint8)
    for index in range(len(images)):
        try:
            pixels[index] = decode(images.read(index)).transpose(2, 0, 1)
        except BadImageError as cause:
            hint = "pack the data set again, or copy the file again"
            raise DataError(f"{images.name(index)}: {cause}", hint=hint) from cause
    return torch.from_numpy(pixels)
