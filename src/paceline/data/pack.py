"""Writes pack files: goes on where an interrupted call stopped, and shows a finished file or none."""

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
from paceline.data.checksum import unreadable
from paceline.data.decode import BadImageError, as_ppm, decode, image_size
from paceline.data.decoded import BadImages, Decoded, Records, central_square, cut_out
from paceline.data.fetch import only_one
from paceline.data.packfile import ENTRY, HEAD_SIZE, VERSION, Head, Keep
from paceline.data.split import DataSet

QUALITY = 92
"""Of JPEG files that are made smaller."""
JOURNAL_EVERY = 64
"""Images after which what was written is entered into the journal: at most so many are done again."""

Progress = Callable[[int, int], None]
"""Told how many images are done, and how many there are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackOptions:
    """What is kept of each image."""

    size: int | None
    """The shorter side of kept JPEG files, or the side of kept pixels; None leaves JPEG files as they are."""
    keep: Keep = "jpeg"
    bad_images: BadImages = "fail"


class Packed(NamedTuple):
    """What came out."""

    path: Path
    num_images: int
    num_bad: int
    num_bytes: int


class _Item(NamedTuple):
    """An image that is to be packed."""

    part: int
    label: int
    records: Records
    number: int


def pack(data: DataSet, out: Path, options: PackOptions, progress: Progress) -> Packed:
    """Write both parts of a data set into one file."""
    parts = [_decoded(part) for part in (data.train, data.test)]
    if options.keep == "pixels" and options.size is None:
        raise DataError("pixels need a size", hint="add --size 256")
    out.parent.mkdir(parents=True, exist_ok=True)
    with only_one(out.with_name(out.name + ".lock")), ExitStack() as stack:
        writer = stack.enter_context(_Writer(out, _plan(parts, options)))
        total = sum(map(len, parts))
        for place, item in enumerate(_items(parts)):
            if place >= writer.done:
                writer.add(_entry(item), _content(item, options))
                progress(place + 1, total)
        return writer.finish(_notes(data, parts[0], options))


def _decoded(part: object) -> Decoded:
    if not isinstance(part, Decoded):
        raise DataError("this data set lives in memory already: packing would not make it quicker")
    return part


def _items(parts: list[Decoded]) -> Iterator[_Item]:
    for part, split in enumerate(parts):
        for number, label in enumerate(split.labels.tolist()):
            yield _Item(part, label, split.records, number)


def _plan(parts: list[Decoded], options: PackOptions) -> str:
    """Return a fingerprint of what is to be packed: an interrupted file is continued only by the same plan."""
    digest = hashlib.sha256(json.dumps(asdict(options)).encode())
    for item in _items(parts):
        digest.update(f"{item.part} {item.label} {item.records.name(item.number)}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _entry(item: _Item) -> NDArray:
    return np.array([(0, 0, 0, item.label, item.part)], ENTRY)


def _content(item: _Item, options: PackOptions) -> bytes:
    """Return the bytes to keep of an image; none at all when it cannot be decoded and that is allowed."""
    try:
        return _kept(item.records.read(item.number), options)
    except BadImageError as cause:
        if options.bad_images == "skip":
            return b""
        name = item.records.name(item.number)
        raise DataError(
            f"{name} cannot be decoded: {cause}", hint="remove it, or leave it out: --bad-images skip"
        ) from cause


def _kept(data: bytes, options: PackOptions) -> bytes:
    height, width = image_size(data)
    if options.keep == "pixels":
        assert options.size is not None
        return as_ppm(cut_out(data, (height, width), central_square(height, width, 1.0), options.size))
    if options.size is None or min(height, width) <= options.size:
        decode(data)  # an image that cannot be decoded must not get in
        return data
    scale = options.size / min(height, width)
    high, wide = (max(options.size, round(side * scale)) for side in (height, width))
    smaller = Image.fromarray(decode(data, at_least=(high, wide))).resize((wide, high), Image.Resampling.BICUBIC)
    buffer = BytesIO()
    smaller.save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue()


def _notes(data: DataSet, train: Decoded, options: PackOptions) -> bytes:
    notes = {"classes": data.classes, "mean": train.mean, "std": train.std, "size": options.size, "keep": options.keep}
    return json.dumps(notes).encode()


class _Writer:
    """The unfinished file and its journal, which says how far it is good."""

    def __init__(self, out: Path, plan: str) -> None:
        self._out = out
        self._plan = plan.encode()
        self._data_path = out.with_name(out.name + ".partial")
        self._journal_path = out.with_name(out.name + ".journal")
        self._pending: list[NDArray] = []
        self._journaled: list[NDArray] = []
        """Joined once, at the end: to join them at every flush would copy all entries so far each time."""
        self._num_journaled = 0

    def __enter__(self) -> "_Writer":
        try:
            recovered = self._recover()
            self._data: BinaryIO = self._data_path.open("r+b" if len(recovered) else "w+b")
            self._end = int((recovered["start"] + recovered["length"]).max(initial=HEAD_SIZE))
            self._data.truncate(self._end)
            self._data.seek(self._end)
            self._journal: BinaryIO = self._journal_path.open("wb")
        except OSError as cause:
            raise unreadable(self._data_path, cause) from cause
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
        """Return how many images are in the file."""
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
        """Add index, notes and head, and give the file its name."""
        self._flush()
        entries = np.concatenate(self._journaled)
        index = entries[entries["length"] > 0]
        tail = index.tobytes() + notes
        notes_start = self._end + index.nbytes
        head = Head(
            version=VERSION,
            num_records=len(index),
            index_start=self._end,
            notes_start=notes_start,
            file_size=self._end + len(tail),
            crc=zlib.crc32(tail),
        )
        self._data.write(tail)
        self._data.seek(0)
        self._data.write(head.pack())
        self._data.flush()
        os.fsync(self._data.fileno())
        self._data.close()
        self._data_path.replace(self._out)
        self._journal_path.unlink()
        return Packed(self._out, len(index), len(entries) - len(index), head.file_size)

    def _flush(self) -> None:
        """Enter what was written into the journal, once it is really in the file."""
        if not self._pending:
            return
        self._data.flush()
        os.fsync(self._data.fileno())
        fresh = np.concatenate(self._pending)
        self._pending.clear()  # first: an interrupted flush is repeated on the way out, and must not enter them twice
        self._enter(fresh)

    def _enter(self, entries: NDArray) -> None:
        self._journal.write(entries.tobytes())
        self._journal.flush()
        self._journaled.append(entries)
        self._num_journaled += len(entries)

    def _recover(self) -> NDArray:
        """Return the entries of an interrupted call with the same plan, as far as their images are in the file."""
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
