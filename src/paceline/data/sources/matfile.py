"""The part of MATLAB's file format (level 5) that ImageNet's development kit uses: a table of texts and numbers."""

import struct
import zlib
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

HEAD_BYTES = 128
LITTLE_ENDIAN = b"IM"
UTF8, COMPRESSED, MATRIX = 16, 15, 14
NUMBERS = {
    1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8",
}  # fmt: skip
"""The types of numbers, as numpy calls them."""
STRUCT, TEXT = 2, 4
"""Classes of a matrix; others that we meet hold numbers."""

Cell = str | float | None
"""A text, a single number, or None for anything larger."""


class _Element(NamedTuple):
    kind: int
    data: bytes


def read_table(content: bytes, name: str) -> list[dict[str, Cell]]:
    """Return the rows of the table with this name; raises ValueError where the bytes are not what they should be."""
    if content[126:128] != LITTLE_ENDIAN:
        raise ValueError("it is no MATLAB file of level 5")
    try:
        for element in _elements(content[HEAD_BYTES:]):
            inner = next(_elements(zlib.decompress(element.data))) if element.kind == COMPRESSED else element
            flags, _, own_name, *parts = _elements(inner.data)
            if own_name.data.decode() == name and flags.data[0] == STRUCT:
                return list(_rows(parts))
    except (zlib.error, struct.error, StopIteration, UnicodeDecodeError, KeyError) as cause:
        raise ValueError(f"it is damaged: {cause or type(cause).__name__}") from cause
    raise ValueError(f"it has no table {name}")


def _elements(data: bytes) -> Iterator[_Element]:
    """Yield the parts that something consists of: a type, a length, and so many bytes, filled up to a multiple of 8."""
    place = 0
    while place < len(data):
        kind, length = struct.unpack_from("<II", data, place)
        if kind >> 16:  # up to four bytes are stored in the place of the length
            kind, length, start, place = kind & 0xFFFF, kind >> 16, place + 4, place + 8
        else:
            start = place + 8
            place = start + length + (0 if kind == COMPRESSED else -length % 8)
        if start + length > len(data):
            raise ValueError("it ends in the middle of a value")
        yield _Element(kind, data[start : start + length])


def _rows(parts: list[_Element]) -> Iterator[dict[str, Cell]]:
    """Yield the rows of a table: after the names of its columns come the values, row by row."""
    longest, names, *values = parts
    (length,) = struct.unpack("<i", longest.data)
    columns = [
        names.data[start : start + length].partition(b"\0")[0].decode() for start in range(0, len(names.data), length)
    ]
    for first in range(0, len(values) - len(columns) + 1, len(columns)):
        row = values[first : first + len(columns)]
        yield dict(zip(columns, map(_cell, row), strict=True))


def _cell(matrix: _Element) -> Cell:
    if matrix.kind != MATRIX or not matrix.data:
        return None
    flags, _, _, *values = _elements(matrix.data)
    if not values or (values[0].kind not in NUMBERS and values[0].kind != UTF8):
        return None
    kind, data = values[0]
    if flags.data[0] == TEXT:
        return data.decode() if kind == UTF8 else "".join(map(chr, np.frombuffer(data, NUMBERS[kind]).tolist()))
    numbers = np.frombuffer(data, NUMBERS[kind])
    return float(numbers[0]) if len(numbers) == 1 else None
