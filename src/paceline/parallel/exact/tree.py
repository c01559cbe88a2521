"""The fixed tree over the shards of a batch: which sums are taken, whoever takes them.

A node covers the shards from a multiple of a power of two up to the next, or to the last shard. Its sum is that of its
two halves, so the order of additions follows from the number of shards alone.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Node(NamedTuple):
    """The shards from `start` up to, not including, `stop`."""

    start: int
    stop: int


def leaf(shard: int) -> Node:
    """Return the node of one shard."""
    return Node(shard, shard + 1)


def are_halves(left: Node, right: Node, num_shards: int) -> bool:
    """Tell whether two nodes are the two halves of one of the tree over so many shards."""
    size = left.stop - left.start
    stop = min(left.start + 2 * size, num_shards)
    return left.start % (2 * size) == 0 and right == (left.stop, stop)


class Sums(Generic[T]):
    """Sums of neighbouring shards, put together as soon as both halves are there.

    Like the digits of a binary counter: however many shards come in, only about log2 of their number are kept.
    """

    def __init__(self, num_shards: int, add: Callable[[T, T], T]) -> None:
        self.num_shards = num_shards
        self._add = add
        self.parts: list[tuple[Node, T]] = []

    def awaits(self, node: Node) -> bool:
        """Tell whether the last sum is the other half of this one."""
        return bool(self.parts) and are_halves(self.parts[-1][0], node, self.num_shards)

    def push(self, node: Node, value: T) -> None:
        """Take the sum of the shards that follow those already here."""
        while self.awaits(node):
            before, sum_before = self.parts.pop()
            node, value = Node(before.start, node.stop), self._add(sum_before, value)
        self.parts.append((node, value))


def cover(shards: Iterable[int], num_shards: int) -> list[Node]:
    """Return the largest nodes that neighbouring shards make up: what a rank that has these shards sends."""
    sums: Sums[None] = Sums(num_shards, lambda _left, _right: None)
    for shard in shards:
        sums.push(leaf(shard), None)
    return [node for node, _ in sums.parts]


def traffic(owned: Sequence[Iterable[int]], num_shards: int) -> float:
    """Return how many times the bytes of a ring all-reduce are sent when each rank owns these shards.

    Half of a ring's bytes carry sums to whoever adds them up, and a rank has as many to carry as it has nodes.
    """
    nodes = [len(cover(shards, num_shards)) for shards in owned]
    return (sum(nodes) / len(nodes) + 1) / 2
