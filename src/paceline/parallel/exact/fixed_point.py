"""Fixed-point numbers with a scale for each block: their sums are exact, so no order of addition changes them."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK = 64
"""Numbers that share a scale. A row of a matrix is rarely shorter, so small rows keep their own precision."""
HEADROOM = 6
"""Bits that the largest number of a block may grow by from one step to the next."""
CHUNK = 1 << 16
"""Numbers that are converted at a time on a CPU: few enough to stay in its cache."""
EMPTY, NOT_FINITE = -127, 127
"""In place of an exponent: a block of zeros only, and a block with an infinity or a NaN."""
INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}


def aligned(number: int) -> int:
    """Return the next multiple of the length of a block."""
    return -(-number // BLOCK) * BLOCK


class FixedPoint:
    """Converts a vector to integers, multiples of a power of two that each block has for itself.

    The power of a step follows from the largest numbers of earlier steps, over all shards, so it is the same on every
    rank. Where a number exceeds its range, `fits` says so and `learn` widens the range: the step must be computed
    again.
    """

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device, *, num_terms: int) -> None:
        """`num_terms` vectors are added at most."""
        assert size % BLOCK == 0, "a vector of whole blocks"
        self.dtype, self.integers = dtype, INTEGERS[dtype]
        self._bits = 8 * dtype.itemsize - 1 - math.ceil(math.log2(num_terms))
        self._bits -= self._bits <= -math.log2(torch.finfo(dtype).eps)  # the largest number may be rounded up
        self._size, self._on_cpu = size, device.type == "cpu"
        num_blocks = size // BLOCK
        self.magnitudes = torch.full((num_blocks,), EMPTY, dtype=torch.int8, device=device)
        """The exponent of the largest number that a block held lately."""
        self._largest = torch.zeros(num_blocks, dtype=dtype, device=device)
        self.set_scale()

    def set_scale(self) -> None:
        """Choose the power of two of each block by its magnitude."""
        exponents = self.magnitudes.to(torch.int32) + (HEADROOM - self._bits)
        exponents = exponents.clamp(min=-126).masked_fill(self.magnitudes == EMPTY, 0)
        one = torch.ones_like(self._largest)
        self._units, self._inverses = (torch.ldexp(one, power)[:, None] for power in (exponents, -exponents))
        self._largest.zero_()

    def add(self, numbers: Tensor, total: Tensor) -> None:
        """Add a vector to a total of integers. The vector itself is overwritten."""
        for part, blocks in self._chunks():
            values = numbers[part].view(-1, BLOCK)
            largest = self._largest[blocks]
            torch.maximum(largest, values.abs().amax(1), out=largest)
            values.mul_(self._inverses[blocks]).round_()
            total[part].add_(values.flatten().to(self.integers))

    def seen(self) -> Tensor:
        """Return the exponent of the largest number that each block held since the scale was chosen."""
        exponents = torch.frexp(self._largest).exponent.clamp(EMPTY + 1, NOT_FINITE - 1).to(torch.int8)
        exponents.masked_fill_(self._largest == 0, EMPTY)
        return exponents.masked_fill_(~self._largest.isfinite(), NOT_FINITE)

    def fits(self, seen: Tensor) -> Tensor:
        """Tell whether all numbers were within range; `seen` is that of all ranks."""
        is_number = (seen != EMPTY) & (seen != NOT_FINITE)
        known = self.magnitudes != EMPTY
        in_range = known & (seen.to(torch.int16) <= self.magnitudes.to(torch.int16) + HEADROOM)
        return (in_range | ~is_number).all()

    def learn(self, seen: Tensor) -> None:
        """Remember the magnitudes of a step, of all ranks, for the scale of the next one.

        Earlier, larger ones are forgotten by one bit per step.
        """
        is_number = (seen != EMPTY) & (seen != NOT_FINITE)
        self.magnitudes.copy_(torch.where(is_number, torch.maximum(seen, self.magnitudes - 1), self.magnitudes))

    def numbers(self, total: Tensor, seen: Tensor) -> Tensor:
        """Return a total as floating-point numbers, in the memory of the total; a block that was not finite is NaN."""
        units = self.units(seen)
        result = total.view(self.dtype)
        for part, blocks in self._chunks():
            result[part].copy_((total[part].to(self.dtype).view(-1, BLOCK) * units[blocks]).flatten())
        return result

    def units(self, seen: Tensor) -> Tensor:
        """Return what an integer of each block stands for, as a column: a power of two, or NaN."""
        return self._units.masked_fill((seen == NOT_FINITE)[:, None], math.nan)

    def _chunks(self) -> Iterator[tuple[slice, slice]]:
        """Yield slices of the vector and of its blocks."""
        length = CHUNK if self._on_cpu else self._size
        for start in range(0, self._size, max(1, length)):
            end = min(start + length, self._size)
            yield slice(start, end), slice(start // BLOCK, end // BLOCK)
