"""How control messages travel: in log2 W rounds, of which each rank sends at most one message.

Each protocol is a generator. It yields a Hop, and is sent what the hop received: by torch.distributed, or by a
simulation of thousands of ranks.
"""

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
Numbers = tuple[int, ...]


class Hop(NamedTuple):
    """What a rank sends and receives in a round; None for nothing."""

    content: Any = None
    to: int | None = None
    source: int | None = None


def largest(own: Numbers, *, rank: int, size: int) -> Generator[Hop, Numbers, Numbers]:
    """Return the largest of the numbers of all ranks, on every rank.

    In each round a rank knows about twice as many ranks. Some count twice, which does not change a maximum.
    """
    for distance in _doublings(size):
        theirs = yield Hop(own, (rank + distance) % size, (rank - distance) % size)
        own = tuple(map(max, own, theirs))
    return own


def joined_on_lead(own: T, join: Callable[[T, T], T], *, rank: int, size: int) -> Generator[Hop, T, T | None]:
    """Return the values of all ranks, joined in the order of ranks, on rank 0, elsewhere None: up a binomial tree."""
    for distance in _doublings(size):
        if rank & distance:
            yield Hop(own, rank - distance)
            return None
        if rank + distance < size:
            own = join(own, (yield Hop(source=rank + distance)))
    return own


def from_lead(own: T, *, rank: int, size: int) -> Generator[Hop, T, T]:
    """Return the value of rank 0 on every rank: down a binomial tree."""
    for distance in reversed(list(_doublings(size))):
        if rank % distance:
            continue
        if rank % (2 * distance):
            own = yield Hop(source=rank - distance)
        elif rank + distance < size:
            yield Hop(own, rank + distance)
    return own


def _doublings(size: int) -> list[int]:
    """Return 1, 2, 4, … below the number of ranks."""
    return [1 << power for power in range((size - 1).bit_length())]
