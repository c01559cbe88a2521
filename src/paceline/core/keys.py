"""Counter-based randomness: a hash that turns (seed, epoch, sample …) into bits, without a random stream.

Every random decision of Paceline is a pure function of its key, so it does not depend on the rank, the worker or
earlier draws. The hash is splitmix64, the same on every platform and numpy version.
"""

import numpy as np
from numpy.typing import NDArray

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(*parts: int) -> int:
    """Return 64 well-mixed bits that depend on every part and on their order."""
    state = 0
    for part in parts:
        state = _finalise((state + GOLDEN + (part & MASK)) & MASK)
    return state


def mix_each(key: int, ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return mix(…, id) for each id at once, where `key` is the mix of all the parts before."""
    with np.errstate(over="ignore"):
        bits = ids.astype(np.uint64) + np.uint64((key + GOLDEN) & MASK)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def uniform(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Turn bits into numbers in [0, 1), using the upper 53."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _finalise(state: int) -> int:
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)
