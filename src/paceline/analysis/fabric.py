"""What an all-reduce costs: links, ranks spread over nodes, and rings, trees and hierarchies over them.

Every quantity may be a number, or an array of drawn values of which each is a possible world.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Quantity = float | NDArray[np.float64]
Algorithm = Literal["auto", "ring", "tree", "hierarchical"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """What connects two ranks, as the payload sees it."""

    bandwidth: Quantity
    """Bytes a second in each direction, after headers and whatever else the transport costs."""
    latency: Quantity = 0.0
    """Seconds from one rank to the next, software included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What one all-reduce takes: seconds of waiting that others may use, and seconds of the wire."""

    wait: Quantity
    wire: Quantity

    @property
    def seconds(self) -> Quantity:
        """How long it takes alone."""
        return self.wait + self.wire


@dataclass(frozen=True, kw_only=True, slots=True)
class Fabric:
    """How ranks are connected: `per_node` of them by one link, and the nodes, one port each, by another."""

    inter: Link
    intra: Link | None = None
    per_node: int = 1
    algorithm: Algorithm = "ring"
    crowding: float = 0.0
    """Bandwidth between nodes falls with their number to this power: shared switches, and the slowest port of many."""

    def nodes(self, ranks: int) -> int:
        """Return how many nodes the ranks fill."""
        return math.ceil(ranks / self.per_node)

    def cost(self, num_bytes: float, ranks: int) -> Cost:
        """Return the cost of summing a buffer over the ranks and giving everyone the sum."""
        if ranks <= 1:
            return Cost(wait=0.0, wire=0.0)
        if self.algorithm == "auto":  # what NCCL does: it knows both and takes the quicker
            ring, tree = self._ring(num_bytes, ranks), self._tree(num_bytes, ranks)
            is_tree = tree.seconds < ring.seconds
            return Cost(wait=np.where(is_tree, tree.wait, ring.wait), wire=np.where(is_tree, tree.wire, ring.wire))
        shapes = {"ring": self._ring, "tree": self._tree, "hierarchical": self._hierarchy}
        return shapes[self.algorithm](num_bytes, ranks)

    def slowest(self, ranks: int) -> Link:
        """Return the link that holds up a pass over all ranks."""
        if self.nodes(ranks) == 1:
            return self._inside
        between = self._between(ranks)
        if self.per_node == 1:
            return between
        return replace(between, bandwidth=np.minimum(between.bandwidth, self._inside.bandwidth))

    def _between(self, ranks: int) -> Link:
        """Return the link between nodes as each has it when they all talk."""
        crowd = (self.nodes(ranks) / 2) ** -self.crowding
        return replace(self.inter, bandwidth=self.inter.bandwidth * crowd)

    @property
    def _inside(self) -> Link:
        return self.inter if self.intra is None else self.intra

    def _ring(self, num_bytes: float, ranks: int) -> Cost:
        """Every rank passes 2 (n - 1) / n of the buffer on; the slowest hop rules, and a piece waits at every hop."""
        nodes = self.nodes(ranks)
        wait = 2 * (nodes - 1) * self.inter.latency + 2 * (ranks - nodes) * self._inside.latency
        return Cost(wait=wait, wire=2 * (ranks - 1) / ranks * num_bytes / self.slowest(ranks).bandwidth)

    def _tree(self, num_bytes: float, ranks: int) -> Cost:
        """Up and down two trees over nodes that carry a half each: few hops, and twice the buffer on the wire."""
        nodes, local = self.nodes(ranks), min(ranks, self.per_node)
        wait = 2 * math.ceil(math.log2(nodes)) * self.inter.latency + 2 * (local - 1) * self._inside.latency
        return Cost(wait=wait, wire=2 * num_bytes / self.slowest(ranks).bandwidth)

    def _hierarchy(self, num_bytes: float, ranks: int) -> Cost:
        """First inside the nodes, then between them, one after the other."""
        nodes, local = self.nodes(ranks), min(ranks, self.per_node)
        wait = 2 * (nodes - 1) * self.inter.latency + 2 * (local - 1) * self._inside.latency
        inside = 2 * (local - 1) / local * num_bytes / self._inside.bandwidth
        return Cost(wait=wait, wire=inside + 2 * (nodes - 1) / nodes * num_bytes / self._between(ranks).bandwidth)
