"""Which gradients are sent together, as in DDP."""

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

FIRST, LARGEST = 1 << 20, 25 << 20
"""Bytes at which the first bucket and the others are full, as in DDP."""


T = TypeVar("T")


def group_gradients(
    items: Sequence[T], kind: Callable[[T], Hashable], num_bytes: Callable[[T], int], largest_mb: float | None = None
) -> list[list[T]]:
    """Group items in the given order into buckets of one kind each, which are full at `largest_mb` MB.

    The first bucket is full earlier: sending it starts the overlap with the backward pass.
    """
    limit = LARGEST if largest_mb is None else int(largest_mb * 2**20)
    buckets: list[list[T]] = []
    room = 0
    for item in items:
        if room <= 0 or kind(buckets[-1][0]) != kind(item):
            room = limit if buckets else min(FIRST, limit)
            buckets.append([])
        buckets[-1].append(item)
        room -= num_bytes(item)
    return buckets
