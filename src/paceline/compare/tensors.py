"""Compares two tensors: equal (every bit), close or different, with the largest difference. Needs no torch."""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

ROUNDING = 1e-5
"""Default tolerance for close: float32 after a few steps with another order of summation."""


SUMS = ("loss_units",)
"""Names of integers that count small units of a real number: they may be close, as floats may."""


class Status(StrEnum):
    """The result of a comparison, from best to worst."""

    EQUAL = "equal"
    CLOSE = "close"
    DIFFERS = "differs"
    ONLY_FIRST = "only in A"
    ONLY_SECOND = "only in B"


class Block(NamedTuple):
    """A flat piece of a tensor: its bits as unsigned integers, and its values."""

    bits: NDArray[Any]
    values: NDArray[np.float64]


class Stored(Protocol):
    """A tensor that is read piece by piece, so that it need not fit into memory."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape; () for a number."""
        ...

    @property
    def dtype(self) -> str:
        """The name of its type, such as float32."""
        ...

    @property
    def digest(self) -> str | None:
        """A hash of its contents that is known without reading them, or None."""
        ...

    def blocks(self) -> Iterator[Block]:
        """Yield its pieces in order; equal shapes give equally long pieces."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Largest:
    """The element with the largest difference."""

    index: tuple[int, ...]
    first: float
    second: float
    absolute: float
    relative: float
    """The difference relative to the largest value of the tensor, so that elements near zero do not dominate."""
    ulps: int | None
    """Distance in units in the last place (ulps); None if the types differ or are not floating-point."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The comparison of one name in two files; None for a file without it."""

    name: str
    status: Status
    shapes: tuple[tuple[int, ...] | None, tuple[int, ...] | None] = (None, None)
    dtypes: tuple[str | None, str | None] = (None, None)
    num_elements: int = 1
    num_different: int = 0
    num_nan: tuple[int, int] = (0, 0)
    num_alike: int = 0
    """Number of elements with different bits and the same value: zeros of two signs, and NaN of two payloads."""
    num_payloads: int = 0
    """Number of elements that are NaN on both sides, with different bits."""
    largest: Largest | None = None
    by_hash: bool = False
    """Whether two tensors were found equal by their hashes, without reading them."""
    values: tuple[Any, Any] = (None, None)
    """The values if it is not a tensor: a counter, a name."""

    @property
    def what(self) -> str:
        """What differs, in a word; empty if nothing does."""
        if self.status in {Status.ONLY_FIRST, Status.ONLY_SECOND}:
            return "missing"
        if self.status is Status.EQUAL:
            return ""
        if not any(self.dtypes):
            return _what_of_values(*self.values)
        if not self.same_kind:
            return "shape" if self.shapes[0] != self.shapes[1] else "dtype"
        if self.num_different > self.num_alike:
            return "value"
        return "NaN" if self.num_payloads else "sign"

    @property
    def same_kind(self) -> bool:
        """Tell whether shapes and types are the same."""
        return self.shapes[0] == self.shapes[1] and self.dtypes[0] == self.dtypes[1]


def compare_tensors(name: str, first: Stored, second: Stored, *, tolerance: float | None = None) -> Comparison:
    """Compare two tensors of the same name."""
    facts: dict[str, Any] = {
        "name": name,
        "shapes": (first.shape, second.shape),
        "dtypes": (first.dtype, second.dtype),
        "num_elements": math.prod(first.shape),
    }
    is_complex = [stored.dtype.startswith("complex") for stored in (first, second)]
    if first.shape != second.shape or is_complex[0] != is_complex[1]:
        return Comparison(status=Status.DIFFERS, **facts)
    if first.digest is not None and first.digest == second.digest and first.dtype == second.dtype:
        return Comparison(status=Status.EQUAL, by_hash=True, **facts)
    tally = _Tally(same_type=first.dtype == second.dtype)
    for mine, other in zip(first.blocks(), second.blocks(), strict=True):
        tally.add(mine, other)
    largest = tally.largest(first.shape, first.dtype)
    facts |= {"num_different": tally.num_different, "num_nan": tuple(tally.num_nan), "largest": largest}
    facts |= {"num_alike": tally.num_alike, "num_payloads": tally.num_payloads}
    if tally.num_different == 0 and tally.same_type:
        return Comparison(status=Status.EQUAL, **facts)
    limit = ROUNDING if tolerance is None else tolerance
    is_close = (tally.same_type or tolerance is not None) and not tally.num_unlike
    is_close = is_close and (largest is None or largest.relative <= limit)
    return Comparison(status=Status.CLOSE if is_close else Status.DIFFERS, **facts)


def compare_values(name: str, first: Any, second: Any, *, tolerance: float | None = None) -> Comparison:
    """Compare two plain values; real numbers may be close, everything else is equal or different."""
    status = Status.EQUAL if _same(first, second) else Status.DIFFERS
    is_real = name.rpartition(".")[2] in SUMS or (isinstance(first, float) and isinstance(second, float))
    if status is Status.DIFFERS and is_real:
        limit = ROUNDING if tolerance is None else tolerance
        both_nan = math.isnan(first) and math.isnan(second)
        status = Status.CLOSE if both_nan or math.isclose(first, second, rel_tol=limit) else Status.DIFFERS
    return Comparison(name=name, status=status, num_different=int(status is not Status.EQUAL), values=(first, second))


def ulps_between(first: int, second: int, num_bits: int) -> int:
    """Return the distance of two floating-point numbers in ulps, given as their bits."""
    sign = 1 << (num_bits - 1)
    places = [-(bits ^ sign) if bits & sign else bits for bits in (first, second)]
    return abs(places[0] - places[1])


class _Tally:
    """The comparison of two tensors over the pieces so far."""

    def __init__(self, *, same_type: bool) -> None:
        self.same_type = same_type
        self.num_different = 0
        self.num_unlike = 0
        """Number of elements where only one is NaN."""
        self.num_nan = [0, 0]
        self.num_alike = 0
        self.num_payloads = 0
        self.scale = 0.0
        self.worst: tuple[float, int, float, float, int, int] | None = None
        self.done = 0

    def add(self, first: Block, second: Block) -> None:
        nans = [np.isnan(block.values) for block in (first, second)]
        for side, found in enumerate(nans):
            self.num_nan[side] += int(found.sum())
        both_nan, alike = nans[0] & nans[1], first.values == second.values
        same = first.bits == second.bits if self.same_type else alike | both_nan
        different = np.flatnonzero(~same)
        for block in (first, second):
            finite = np.abs(block.values[np.isfinite(block.values)])
            self.scale = max(self.scale, float(finite.max(initial=0.0)))
        if len(different):
            self.num_different += len(different)
            self.num_unlike += int((nans[0] ^ nans[1])[different].sum())
            self.num_payloads += int(both_nan[different].sum())
            self.num_alike += int((both_nan | _zeros(alike, first))[different].sum())
            self._keep_worst(first, second, different)
        self.done += len(first.values)

    def _keep_worst(self, first: Block, second: Block, places: NDArray[np.intp]) -> None:
        with np.errstate(invalid="ignore"):
            sizes = np.abs(first.values[places] - second.values[places])
        is_nan = [np.isnan(block.values[places]) for block in (first, second)]
        sizes[is_nan[0] ^ is_nan[1]] = math.inf
        sizes[is_nan[0] & is_nan[1]] = 0.0  # only their bits differ
        at = int(places[sizes.argmax()])
        size = float(sizes.max())
        if self.worst is None or size > self.worst[0]:
            values = float(first.values[at]), float(second.values[at])
            self.worst = (size, self.done + at, *values, int(first.bits[at]), int(second.bits[at]))

    def largest(self, shape: tuple[int, ...], dtype: str) -> Largest | None:
        if self.worst is None:
            return None
        size, place, first, second, *bits = self.worst
        is_number = math.isfinite(size) and not math.isnan(first)
        has_ulps = self.same_type and dtype.startswith(("float", "bfloat")) and is_number
        width = int("".join(filter(str.isdigit, dtype.partition("_")[0])) or 0)
        return Largest(
            index=tuple(int(i) for i in np.unravel_index(place, shape)) if shape else (),
            first=first,
            second=second,
            absolute=size,
            relative=0.0 if size == 0 else size / self.scale if self.scale else math.inf,
            ulps=ulps_between(bits[0], bits[1], width) if has_ulps else None,
        )


def _zeros(alike: NDArray[np.bool_], block: Block) -> NDArray[np.bool_]:
    """Return where both sides are zero, given where their values are the same."""
    return alike & (block.values == 0)


def _same(first: Any, second: Any) -> bool:
    """Tell whether two plain values are the same, floats by their bits."""
    if isinstance(first, float) and isinstance(second, float):
        return struct.pack("d", first) == struct.pack("d", second)
    return type(first) is type(second) and first == second


def _what_of_values(first: Any, second: Any) -> str:
    if type(first) is not type(second):
        return "type"
    if not isinstance(first, float):
        return "value"
    if math.isnan(first) and math.isnan(second):
        return "NaN"
    return "sign" if first == second == 0 else "value"
