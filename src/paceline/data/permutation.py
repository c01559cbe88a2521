"""A keyed permutation, computed by position: any slice of a billion shuffled ids costs no memory but its own."""

from math import isqrt

import numpy as np
from numpy.typing import NDArray

from paceline.core.keys import mix

ROUNDS = 8
"""With 6 the neighbours of an id are measurably uneven up to about 100 ids; with 8, from 32 ids on, nothing is."""
BLOCK = 4096
"""Positions computed together: their numbers fit in the cache of a core."""

Positions = NDArray[np.int64]
_STEPS = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))
_HALF = np.uint64(32)


class Permutation:
    """Some consecutive positions of the ids 0 … num_ids-1 in an order that depends on the key alone.

    It is a Feistel network over pairs of numbers below a = ⌈√n⌉ and b = ⌈n / a⌉, with addition modulo a and b. At most
    a - 1 pairs stand for no id; a position that reaches one of them is mapped again.
    """

    def __init__(self, *, key: int, num_ids: int, positions: range | None = None, rounds: int = ROUNDS) -> None:
        self._num_ids = num_ids
        self._positions = range(num_ids) if positions is None else positions
        high = isqrt(max(num_ids - 1, 0)) + 1
        self._sizes = np.uint64(high), np.uint64(-(-num_ids // high))
        self._keys = [np.uint64(mix(key, number)) for number in range(rounds)]

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, positions: slice | Positions) -> Positions:
        """Return the ids at these positions."""
        if isinstance(positions, slice):
            chosen = self._positions[positions]
            return self._computed(np.arange(chosen.start, chosen.stop, chosen.step))
        if len(positions) and not (positions.min() >= 0 and positions.max() < len(self)):
            raise IndexError(f"positions must be between 0 and {len(self) - 1}")
        return self._computed(positions + self._positions.start)

    def has(self, ids: Positions) -> NDArray[np.bool_]:
        """Tell for each id whether it is at one of the positions."""
        found = self._walked(ids, inverse=True)
        return (found >= self._positions.start) & (found < self._positions.stop)

    def _computed(self, positions: Positions) -> Positions:
        if len(positions) <= BLOCK:
            return self._walked(positions, inverse=False)
        ids = np.empty(len(positions), np.int64)
        for start in range(0, len(positions), BLOCK):
            ids[start : start + BLOCK] = self._walked(positions[start : start + BLOCK], inverse=False)
        return ids

    def _walked(self, numbers: Positions, *, inverse: bool) -> Positions:
        """Map numbers below num_ids to numbers below num_ids."""
        mapped = self._mapped(numbers, inverse=inverse)
        outside = np.flatnonzero(mapped >= self._num_ids)
        while len(outside):
            mapped[outside] = self._mapped(mapped[outside], inverse=inverse)
            outside = outside[mapped[outside] >= self._num_ids]
        return mapped

    def _mapped(self, numbers: Positions, *, inverse: bool) -> Positions:
        high, low = self._sizes
        halves = [half.astype(np.uint64) for half in np.divmod(numbers, int(low))]
        scratch = np.empty_like(halves[0])
        order = range(len(self._keys))
        for number in reversed(order) if inverse else order:
            changed = number % 2
            size = (high, low)[changed]
            shift = _hashed_below(size, self._keys[number], halves[1 - changed], scratch)
            half = halves[changed]
            half += size - shift if inverse else shift
            np.minimum(half, np.subtract(half, size, out=scratch), out=half)  # modulo: a negative number wraps around
        return (halves[0] * low + halves[1]).astype(np.int64)


def _hashed_below(
    size: np.uint64, key: np.uint64, numbers: NDArray[np.uint64], scratch: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Return a hash (splitmix64) of each number as a number below a size of at most 2^32."""
    bits = numbers + key
    for shift, factor in _STEPS:
        bits ^= np.right_shift(bits, shift, out=scratch)
        bits *= factor
    bits >>= _HALF  # multiplying the upper half is faster than a division
    bits *= size
    bits >>= _HALF
    return bits
