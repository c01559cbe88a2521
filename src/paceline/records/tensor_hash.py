"""The hash of a tensor: 128 bits that depend on every bit and its place, and that shards can compute separately.

The elements in row-major order are cut into words of at most 32 bits. A hash is two sums over all words, modulo 2^64,
of the word times an odd factor that depends on its index. So the hash of a tensor is the sum of the hashes of its
shards, wherever it was cut. Two tensors of one shape and type that differ have the same hash with a probability below
2^-64, unless they were made for it: files are protected by their sha256. It takes less time than sha256.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from paceline.core.keys import mix, mix_each

BLOCK = 1 << 14
"""Words that are multiplied at a time. A part of the definition, as the key is: the factors depend on both."""
KEY = 0x7E4504
NUM_SUMS = 2

Sums = NDArray[np.uint64]


def no_sums() -> Sums:
    """Return the sums of no elements."""
    return np.zeros(NUM_SUMS, dtype=np.uint64)


def sum_words(data: NDArray[np.uint8], *, element_bytes: int, first: int) -> Sums:
    """Return the sums over the bytes of some elements; `first` is the index of the first one in the whole tensor."""
    width = min(element_bytes, 4)
    words = data.view(f"<u{width}")
    start, position, total = 0, first * (element_bytes // width), no_sums()
    while start < len(words):
        block, inside = divmod(position + start, BLOCK)
        values = words[start : start + BLOCK - inside].astype(np.uint64)
        total += np.einsum("i,ki->k", values, _factors()[:, inside : inside + len(values)]) * _block_factors(block)
        start += len(values)
    return total


def hash_text(sums: Sums) -> str:
    """Return a hash as hexadecimal digits."""
    return "".join(f"{int(value):016x}" for value in sums)


@cache
def _factors() -> NDArray[np.uint64]:
    """Return the factors of the words of a block."""
    indices = np.arange(BLOCK)
    return np.stack([mix_each(mix(KEY, number), indices) | np.uint64(1) for number in range(NUM_SUMS)])


def _block_factors(block: int) -> Sums:
    """Return the factors of a block as a whole."""
    return np.array([mix(KEY, NUM_SUMS + number, block) | 1 for number in range(NUM_SUMS)], dtype=np.uint64)
