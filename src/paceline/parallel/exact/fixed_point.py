"""Fixed-point numbers with a scale for each block: their sums are exact, so no order of addition changes them."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK = 64
"""Numbers that share a scale. A row of a matrix is rarely shorter, so small rows keep their own precision."""
HEADROOM = 6
"""Bits that the largest number of a block may grow by from one step to the next."""
PRECISION, ASSUMED = 24, -30
"""Wide sums: bits of the largest number expected in a block, and its exponent where nothing is known of the block."""
CHUNK = 1 << 16
"""Numbers that are converted at a time on a CPU: few enough to stay in its cache."""
EMPTY, NOT_FINITE = -127, 127
"""In place of an exponent: a block of zeros only, and a block with an infinity or a NaN."""


def whole_blocks(number: int) -> int:
    """Return the next multiple of the length of a block."""
    return -(-number // BLOCK) * BLOCK


class FixedPoint:
    """Converts a vector to integers, multiples of a power of two that each block has for itself.

    The power of a step follows from the largest numbers of earlier steps, over all shards, so it is the same on every
    rank. Where a number exceeds its range, `fits` says so and `learn` widens the range: the step must be computed
    again. Wide sums are 64-bit integers, whose range is enough even where nothing is known of a block.
    """

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device, *, num_terms: int) -> None:
        """`num_terms` vectors are added at most."""
        assert size % BLOCK == 0, "a vector of whole blocks"
        self.dtype = dtype
        self._carry = math.ceil(math.log2(num_terms))
        self._length = CHUNK if device.type == "cpu" else max(1, size)
        self.magnitudes = torch.full((size // BLOCK,), EMPTY, dtype=torch.int8, device=device)
        """The exponent of the largest number that a block held lately."""
        self._largest = torch.zeros(size // BLOCK, dtype=dtype, device=device)
        self.set_scale(wide=False)

    def set_scale(self, *, wide: bool) -> None:
        """Choose the type of the sums, and the power of two of each block by its magnitude."""
        single = self.dtype == torch.float32
        self._is_wide = wide and single  # no integer is wider than those of fp64
        self.integers = torch.int32 if single and not wide else torch.int64
        bits = 8 * self.integers.itemsize - 1 - self._carry
        bits -= bits <= -math.log2(torch.finfo(self.dtype).eps)  # the largest number may be rounded up
        self._headroom = bits - PRECISION if self._is_wide else HEADROOM
        expected = self.magnitudes.masked_fill(self.magnitudes == EMPTY, ASSUMED).to(torch.int32)
        exponents = (expected + (self._headroom - bits)).clamp(min=-126)
        one = torch.ones_like(self._largest)
        self._units, self._inverses = (torch.ldexp(one, power)[:, None] for power in (exponents, -exponents))
        self._largest.zero_()

    def add(self, numbers: Tensor, total: Tensor) -> None:
        """Add a vector to a total of integers. The vector itself is overwritten."""
        for part, blocks in self._chunks(numbers):
            values = numbers[part].view(-1, BLOCK)
            largest = self._largest[blocks]
            torch.maximum(largest, values.abs().amax(1), out=largest)
            values.mul_(self._inverses[blocks]).round_()
            total[part].add_(values.view(-1).to(self.integers))

    def seen(self) -> Tensor:
        """Return the exponent of the largest number that each block held since the scale was chosen."""
        exponents = torch.frexp(self._largest).exponent.clamp(EMPTY + 1, NOT_FINITE - 1).to(torch.int8)
        exponents.masked_fill_(self._largest == 0, EMPTY)
        return exponents.masked_fill_(~self._largest.isfinite(), NOT_FINITE)

    def fits(self, seen: Tensor) -> Tensor:
        """Tell whether all numbers were within range; `seen` is that of all ranks."""
        known, exponents = self.magnitudes != EMPTY, seen.to(torch.int16)
        in_range = known & (exponents <= self.magnitudes.to(torch.int16) + self._headroom)
        if self._is_wide:  # a guess must not have been far too large either
            in_range |= ~known & (exponents <= ASSUMED + self._headroom) & (exponents >= ASSUMED - 2)
        return (in_range | (seen == EMPTY) | (seen == NOT_FINITE)).all()

    def learn(self, seen: Tensor) -> None:
        """Remember the magnitudes of a step, of all ranks, for the scale of the next one.

        Earlier, larger ones are forgotten by one bit per step.
        """
        is_number = (seen != EMPTY) & (seen != NOT_FINITE)
        self.magnitudes.copy_(torch.where(is_number, torch.maximum(seen, self.magnitudes - 1), self.magnitudes))

    def numbers(self, total: Tensor, seen: Tensor) -> Tensor:
        """Return a total as floating-point numbers; a block that was not finite is NaN."""
        units, out = self.units(seen), torch.empty_like(total, dtype=self.dtype)
        for part, blocks in self._chunks(total):
            torch.mul(total[part].to(self.dtype).view(-1, BLOCK), units[blocks], out=out[part].view(-1, BLOCK))
        return out

    def units(self, seen: Tensor) -> Tensor:
        """Return what an integer of each block stands for, as a column: a power of two, or NaN."""
        return self._units.masked_fill((seen == NOT_FINITE)[:, None], math.nan)

    def _chunks(self, vector: Tensor) -> Iterator[tuple[slice, slice]]:
        """Yield slices of a vector and of its blocks."""
        for start in range(0, len(vector), self._length):
            end = min(start + self._length, len(vector))
            yield slice(start, end), slice(start // BLOCK, end // BLOCK)
