"""The pack file: what its bytes mean. Both the writer and the reader follow this page and nothing else.

head     64 bytes: magic, version, number of records, where index and notes begin, size of the file, checksums
records  the images one after the other: as they came, as smaller JPEG, or as pixels (PPM: a line, then pixels)
index    one entry per image: where, how long, checksum, label, part (0 train, 1 test)
notes    JSON: names of the classes, size, mean and standard deviation
"""

import struct
import zlib
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

MAGIC = b"PACELINE"
VERSION = 1
HEAD_SIZE = 64
_HEAD = struct.Struct("<8sIIQQQQII")
PARTS = ("train", "test")
ENTRY = np.dtype([("start", "<u8"), ("length", "<u4"), ("crc", "<u4"), ("label", "<i4"), ("part", "<i4")])
"""One image in the index. A length of 0 marks an image that could not be decoded; it is left out at the end."""

Keep = Literal["jpeg", "pixels"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """The first bytes of a pack file."""

    version: int
    num_records: int
    index_start: int
    notes_start: int
    file_size: int
    crc: int
    """Of index and notes."""

    def pack(self) -> bytes:
        """Return the head as bytes, with a checksum of its own."""
        fields = (self.version, 0, self.num_records, self.index_start, self.notes_start, self.file_size, self.crc)
        own = zlib.crc32(_HEAD.pack(MAGIC, *fields, 0))
        return _HEAD.pack(MAGIC, *fields, own).ljust(HEAD_SIZE, b"\0")


def parse_head(data: bytes) -> Head | None:
    """Return the head, or None when these bytes do not begin a pack file; a damaged head gives version 0."""
    if len(data) < HEAD_SIZE or not data.startswith(MAGIC):
        return None
    _, version, _, num_records, index_start, notes_start, file_size, crc, _ = _HEAD.unpack(data[: _HEAD.size])
    head = Head(
        version=version,
        num_records=num_records,
        index_start=index_start,
        notes_start=notes_start,
        file_size=file_size,
        crc=crc,
    )
    if version == VERSION and head.pack() != data[:HEAD_SIZE]:
        return replace(head, version=0)
    return head
