"""The pack file format, shared by the writer and the reader.

header   64 bytes: magic, version, number of images, offsets of index and notes, size of the file, checksums
images   one after the other: unchanged, as smaller JPEG, or as pixels (PPM)
index    one entry per image: offset, length, checksum, label, split (0 train, 1 test)
notes    JSON: names of the classes, size, mean and standard deviation
"""

import struct
import zlib
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

MAGIC = b"PACELINE"
VERSION = 1
HEADER_SIZE = 64
_HEADER = struct.Struct("<8sIIQQQQII")
SPLITS = ("train", "test")
ENTRY = np.dtype([("start", "<u8"), ("length", "<u4"), ("crc", "<u4"), ("label", "<i4"), ("split", "<i4")])
"""One image in the index. A length of 0 marks an image that could not be decoded; it is dropped at the end."""

Keep = Literal["jpeg", "pixels"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """The first bytes of a pack file."""

    version: int
    num_images: int
    index_start: int
    notes_start: int
    file_size: int
    crc: int
    """Checksum of index and notes."""

    def pack(self) -> bytes:
        """Return the header as bytes, with its own checksum."""
        fields = (self.version, 0, self.num_images, self.index_start, self.notes_start, self.file_size, self.crc)
        own = zlib.crc32(_HEADER.pack(MAGIC, *fields, 0))
        return _HEADER.pack(MAGIC, *fields, own).ljust(HEADER_SIZE, b"\0")


def parse_header(data: bytes) -> Header | None:
    """Return the header, or None if these bytes do not start a pack file; a damaged header gives version 0."""
    if len(data) < HEADER_SIZE or not data.startswith(MAGIC):
        return None
    _, version, _, num_images, index_start, notes_start, file_size, crc, _ = _HEADER.unpack(data[: _HEADER.size])
    header = Header(
        version=version,
        num_images=num_images,
        index_start=index_start,
        notes_start=notes_start,
        file_size=file_size,
        crc=crc,
    )
    if version == VERSION and header.pack() != data[:HEADER_SIZE]:
        return replace(header, version=0)
    return header
