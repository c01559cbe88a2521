"""Writes pack files: resumes an interrupted call, and leaves a complete file or none."""

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from paceline.core.errors import DataError
from paceline.data.decode import BadImageError, as_ppm, decode, image_size
from paceline.data.on_demand import BadImages, EncodedImages, OnDemand, central_square, crop_and_resize
from paceline.data.pack_format import ENTRY, HEADER_SIZE, VERSION, Header, Keep
from paceline.data.source_files import unreadable_file
from paceline.data.split import DataSet
from paceline.records.writer import locked

QUALITY = 92
"""Of resized JPEG files."""
JOURNAL_EVERY = 64
"""Images between two entries of the journal: at most this many are written again after an interruption."""

Progress = Callable[[int, int], None]
"""Called with the number of finished images and the total."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackOptions:
    """How to store each image."""

    size: int | None
    """The shorter side of kept JPEG files, or the side of kept pixels; None leaves JPEG files as they are."""
    keep: Keep = "jpeg"
    bad_images: BadImages = "fail"


class Packed(NamedTuple):
    """The finished file."""

    path: Path
    num_images: int
    num_bad: int
    num_bytes: int


class _Item(NamedTuple):
    """An image to pack."""

    split: int
    label: int
    encoded: EncodedImages
    image_index: int


def write_pack(data: DataSet, out: Path, options: PackOptions, progress: Progress) -> Packed:
    """Write both splits of a data set into one file."""
    splits = [_on_demand(split) for split in (data.train, data.test)]
    if options.keep == "pixels" and options.size is None:
        raise DataError("--keep pixels needs --size", hint="add --size 256")
    out.parent.mkdir(parents=True, exist_ok=True)
    with locked(out.with_name(out.name + ".lock")), ExitStack() as stack:
        writer = stack.enter_context(_Writer(out, _plan(splits, options)))
        total = sum(map(len, splits))
        for position, item in enumerate(_items(splits)):
            if position >= writer.done:
                writer.add(_entry(item), _content(item, options))
                progress(position + 1, total)
        return writer.finish(_notes(data, splits[0], options))


def _on_demand(split: object) -> OnDemand:
    if not isinstance(split, OnDemand):
        raise DataError("this data set is always kept in memory: packing would not make it faster")
    return split


def _items(splits: list[OnDemand]) -> Iterator[_Item]:
    for split_index, split in enumerate(splits):
        for image_index, label in enumerate(split.labels.tolist()):
            yield _Item(split_index, label, split.encoded, image_index)


def _plan(splits: list[OnDemand], options: PackOptions) -> str:
    """Return a hash of the images to pack: only a call with the same plan resumes an interrupted file."""
    digest = hashlib.sha256(json.dumps(asdict(options)).encode())
    for item in _items(splits):
        digest.update(
            f"{item.split} {item.label} {item.encoded.name(item.image_index)}\n".encode(errors="surrogateescape")
        )
    return digest.hexdigest()


def _entry(item: _Item) -> NDArray:
    return np.array([(0, 0, 0, item.label, item.split)], ENTRY)


def _content(item: _Item, options: PackOptions) -> bytes:
    """Return the bytes to store; no bytes for a bad image that may be skipped."""
    try:
        return _kept(item.encoded.read(item.image_index), options)
    except BadImageError as cause:
        if options.bad_images == "skip":
            return b""
        name = item.encoded.name(item.image_index)
        raise DataError(
            f"{name} cannot be decoded: {cause}", hint="remove it, or skip it: --bad-images skip"
        ) from cause


def _kept(data: bytes, options: PackOptions) -> bytes:
    height, width = image_size(data)
    if options.keep == "pixels":
        assert options.size is not None
        return as_ppm(crop_and_resize(data, (height, width), central_square(height, width, 1.0), options.size))
    if options.size is None or min(height, width) <= options.size:
        decode(data)  # a bad image must not be stored
        return data
    scale = options.size / min(height, width)
    high, wide = (max(options.size, round(side * scale)) for side in (height, width))
    smaller = Image.fromarray(decode(data, at_least=(high, wide))).resize((wide, high), Image.Resampling.BICUBIC)
    buffer = BytesIO()
    smaller.save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


def _notes(data: DataSet, train: OnDemand, options: PackOptions) -> bytes:
    notes = {"classes": data.classes, "mean": train.mean, "std": train.std, "size": options.size, "keep": options.keep}
    return json.dumps(notes).encode()


class _Writer:
    """The unfinished file, and the journal of the images that are safely in it."""

    def __init__(self, out: Path, plan: str) -> None:
        self._out = out
        self._plan = plan.encode()
        self._data_path = out.with_name(out.name + ".partial")
        self._journal_path = out.with_name(out.name + ".journal")
        self._pending: list[NDArray] = []
        self._journaled: list[NDArray] = []
        """Joined once, at the end: joining at every flush would copy all entries each time."""
        self._num_journaled = 0

    def __enter__(self) -> "_Writer":
        try:
            recovered = self._recover()
            self._data: BinaryIO = self._data_path.open("r+b" if len(recovered) else "w+b")
            self._end = int((recovered["start"] + recovered["length"]).max(initial=HEADER_SIZE))
            self._data.truncate(self._end)
            self._data.seek(self._end)
            self._journal: BinaryIO = self._journal_path.open("wb")
        except OSError as cause:
            raise unreadable_file(self._data_path, cause) from cause
        self._journal.write(self._plan)
        self._enter(recovered)
        return self

    def __exit__(self, *_: object) -> None:
        if not self._data.closed:
            self._flush()
        self._data.close()
        self._journal.close()

    @property
    def done(self) -> int:
        """Return the number of images in the file."""
        return self._num_journaled + len(self._pending)

    def add(self, entry: NDArray, content: bytes) -> None:
        """Append an image."""
        entry["start"], entry["length"], entry["crc"] = self._end, len(content), zlib.crc32(content)
        self._data.write(content)
        self._end += len(content)
        self._pending.append(entry)
        if len(self._pending) >= JOURNAL_EVERY:
            self._flush()

    def finish(self, notes: bytes) -> Packed:
        """Add index, notes and header, and rename the file."""
        self._flush()
        entries = np.concatenate(self._journaled)
        index = entries[entries["length"] > 0]
        tail = index.tobytes() + notes
        notes_start = self._end + index.nbytes
        header = Header(
            version=VERSION,
            num_images=len(index),
            index_start=self._end,
            notes_start=notes_start,
            file_size=self._end + len(tail),
            crc=zlib.crc32(tail),
        )
        self._data.write(tail)
        self._data.seek(0)
        self._data.write(header.pack())
        self._data.flush()
        os.fsync(self._data.fileno())
        self._data.close()
        self._data_path.replace(self._out)
        self._journal_path.unlink()
        return Packed(self._out, len(index), len(entries) - len(index), header.file_size)

    def _flush(self) -> None:
        """Add the written images to the journal, once they are on disk."""
        if not self._pending:
            return
        self._data.flush()
        os.fsync(self._data.fileno())
        fresh = np.concatenate(self._pending)
        self._pending.clear()  # first: __exit__ repeats an interrupted flush, which must not add them twice
        self._enter(fresh)

    def _enter(self, entries: NDArray) -> None:
        self._journal.write(entries.tobytes())
        self._journal.flush()
        self._journaled.append(entries)
        self._num_journaled += len(entries)

    def _recover(self) -> NDArray:
        """Return the entries of an interrupted call with the same plan whose images are in the file."""
        nothing = np.zeros(0, ENTRY)
        if not self._journal_path.exists() or not self._data_path.exists():
            return nothing
        journal = self._journal_path.read_bytes()
        if not journal.startswith(self._plan):
            return nothing
        rest = journal[len(self._plan) :]
        entries = np.frombuffer(rest[: len(rest) - len(rest) % ENTRY.itemsize], ENTRY)
        whole = entries["start"] + entries["length"] <= self._data_path.stat().st_size
        return entries[: len(whole) if whole.all() else int(np.argmin(whole))].copy()
