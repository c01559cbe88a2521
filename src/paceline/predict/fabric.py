"""The cost of an all-reduce: links, ranks on nodes, and ring, tree and hierarchical algorithms.

Every quantity may be a number, or an array of draws.
"""

import math
import re
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from paceline.core.errors import ConfigError, suggestion
from paceline.core.units import parse_rate

Quantity = float | NDArray[np.float64]
Algorithm = Literal["auto", "ring", "tree", "hierarchical"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """The link between two ranks."""

    bandwidth: Quantity
    """Payload bytes per second in each direction, after the overhead of headers and transport."""
    latency: Quantity = 0.0
    """Seconds from one rank to the next, software included."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """The cost of one all-reduce: seconds of latency, which others may overlap, and seconds on the wire."""

    wait: Quantity
    wire: Quantity

    @property
    def seconds(self) -> Quantity:
        """Seconds without other traffic."""
        return self.wait + self.wire


@dataclass(frozen=True, kw_only=True, slots=True)
class Fabric:
    """The links of a cluster: between the `per_node` ranks of a node, and between nodes with one port each."""

    inter: Link
    intra: Link | None = None
    per_node: int = 1
    algorithm: Algorithm = "ring"
    crowding: float = 0.0
    """Exponent of the loss of bandwidth with the number of nodes: shared switches, and the slowest port of many."""

    def nodes(self, ranks: int) -> int:
        """Return the number of nodes for these ranks."""
        return math.ceil(ranks / self.per_node)

    def cost(self, num_bytes: float, ranks: int) -> Cost:
        """Return the cost of an all-reduce of a buffer."""
        if ranks <= 1:
            return Cost(wait=0.0, wire=0.0)
        if self.algorithm == "auto":  # NCCL has both and chooses the faster
            ring, tree = self._ring(num_bytes, ranks), self._tree(num_bytes, ranks)
            is_tree = tree.seconds < ring.seconds
            return Cost(wait=np.where(is_tree, tree.wait, ring.wait), wire=np.where(is_tree, tree.wire, ring.wire))
        shapes = {"ring": self._ring, "tree": self._tree, "hierarchical": self._hierarchy}
        return shapes[self.algorithm](num_bytes, ranks)

    def slowest(self, ranks: int) -> Link:
        """Return the bottleneck link of a pass over all ranks."""
        if self.nodes(ranks) == 1:
            return self._inside
        between = self._between(ranks)
        if self.per_node == 1:
            return between
        return replace(between, bandwidth=np.minimum(between.bandwidth, self._inside.bandwidth))

    def _between(self, ranks: int) -> Link:
        """Return the link between nodes under load from all nodes."""
        crowd = (self.nodes(ranks) / 2) ** -self.crowding
        return replace(self.inter, bandwidth=self.inter.bandwidth * crowd)

    @property
    def _inside(self) -> Link:
        return self.inter if self.intra is None else self.intra

    def _ring(self, num_bytes: float, ranks: int) -> Cost:
        """Ring: every rank sends 2 (n - 1) / n of the buffer; the slowest hop limits it, and every hop adds latency."""
        nodes = self.nodes(ranks)
        wait = 2 * (nodes - 1) * self.inter.latency + 2 * (ranks - nodes) * self._inside.latency
        return Cost(wait=wait, wire=2 * (ranks - 1) / ranks * num_bytes / self.slowest(ranks).bandwidth)

    def _tree(self, num_bytes: float, ranks: int) -> Cost:
        """Double tree over nodes, half of the buffer on each: few hops, but twice the buffer on the wire."""
        nodes, local = self.nodes(ranks), min(ranks, self.per_node)
        wait = 2 * math.ceil(math.log2(nodes)) * self.inter.latency + 2 * (local - 1) * self._inside.latency
        return Cost(wait=wait, wire=2 * num_bytes / self.slowest(ranks).bandwidth)

    def _hierarchy(self, num_bytes: float, ranks: int) -> Cost:
        """Hierarchical: first inside the nodes, then between them."""
        nodes, local = self.nodes(ranks), min(ranks, self.per_node)
        wait = 2 * (nodes - 1) * self.inter.latency + 2 * (local - 1) * self._inside.latency
        inside = 2 * (local - 1) / local * num_bytes / self._inside.bandwidth
        return Cost(wait=wait, wire=inside + 2 * (nodes - 1) / nodes * num_bytes / self._between(ranks).bandwidth)


Transport = Literal["tcp", "rdma", "local"]

FRAMES = 1448 / 1514
"""Payload fraction of an Ethernet frame: TCP over IPv4 with time stamps, MTU 1500."""
TCP_LIMIT = 22e9 / 8
"""Maximum bytes per second through the sockets of one host, limited by copying and interrupts."""
RDMA_SHARE = 0.88
"""Fraction of the line rate that a large all-reduce reaches over InfiniBand or RoCE."""
LATENCIES: dict[Transport, float] = {"tcp": 30e-6, "rdma": 8e-6, "local": 4e-6}
"""Seconds per hop of an all-reduce, software included."""

INSIDE = {"nvlink": 85e9, "nvlink1": 25e9, "nvlink2": 85e9, "nvlink3": 155e9, "nvlink4": 250e9, "nvswitch": 95e9,
          "pcie": 7e9, "pcie3": 7e9, "pcie4": 14e9, "pcie5": 28e9, "memory": 3e9}  # fmt: skip
"""Bus bandwidth of an all-reduce over all devices of a node. nvlink and nvlink2 are V100, nvlink1 is P100."""
INFINIBAND = {"qdr": 32e9, "fdr": 56e9, "edr": 100e9, "hdr": 200e9, "ndr": 400e9}
RDMA_WORDS = ("rdma", "roce", "rocev1", "rocev2", "ib", "infiniband", "efa")
TCP_WORDS = ("tcp", "ethernet", "sockets", "")
NAMED = re.compile(r"(?:(\d+)\s*[x×]\s*)?(\S+?)(?:[\s\-]+([a-z][a-z0-9]*))?", re.IGNORECASE)

APART = re.compile(r"(?<=\d)\s+(?=[kmgt]?b)", re.IGNORECASE)
"""The space in "10 Gbit/s"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedLink:
    """A link by name, with its bandwidth and uncertainty."""

    name: str
    link: Link
    nominal: float
    """Nominal bytes per second."""
    transport: Transport
    uncertainty: float
    """Standard deviation of the logarithm of its bandwidth."""


def parse_intra_link(text: str) -> NamedLink:
    """Parse a link inside a node: "nvlink", "pcie" or a rate such as "10GB/s"."""
    if text.strip().lower() in INSIDE:
        return parse_link(text)
    nominal = _rate(APART.sub("", text.strip()), text)
    link = Link(bandwidth=nominal, latency=LATENCIES["local"])
    return NamedLink(name=text, link=link, nominal=nominal, transport="local", uncertainty=0.1)


def parse_link(text: str, *, latency: float | None = None) -> NamedLink:
    """Parse a link such as "25gbit", "100gbit rdma", "4xEDR", "nvlink" or "pcie"."""
    name = text.strip().lower()
    if name in INSIDE:
        link = Link(bandwidth=INSIDE[name], latency=LATENCIES["local"] if latency is None else latency)
        return NamedLink(name=name, link=link, nominal=INSIDE[name], transport="local", uncertainty=0.25)
    if name.startswith("-"):
        raise ConfigError(f'a link of "{text}" has a negative bandwidth', hint="give a rate above 0, such as 10gbit")
    match = NAMED.fullmatch(APART.sub("", text.strip()))
    if match is None:
        raise _unknown(text)
    number, rate, word = int(match[1] or 1), match[2], (match[3] or "").lower()
    if rate.lower() in INFINIBAND:
        return _between(text, number * INFINIBAND[rate.lower()] / 8, "rdma", latency)
    nominal = _rate(rate, text)
    if word in RDMA_WORDS or word in TCP_WORDS:
        return _between(text, number * nominal, "rdma" if word in RDMA_WORDS else "tcp", latency)
    known = suggestion(word, [*RDMA_WORDS, *filter(None, TCP_WORDS)])
    raise ConfigError(f'there is no transport "{word}" in the link "{text}"', hint=f"{known}; {rate} alone is TCP")


def _rate(rate: str, text: str) -> float:
    try:
        nominal = parse_rate(rate)
    except ValueError:
        raise _unknown(text) from None
    if nominal <= 0:
        raise ConfigError(f'a link of "{text}" has no bandwidth', hint="give a rate above 0, such as 10gbit")
    return nominal


def _between(name: str, nominal: float, transport: Transport, latency: float | None) -> NamedLink:
    """Return a link between nodes: RDMA reaches a fraction of the line rate, TCP is also limited by the host."""
    wait = LATENCIES[transport] if latency is None else latency
    if transport == "rdma":
        link = Link(bandwidth=RDMA_SHARE * nominal, latency=wait)
        return NamedLink(name=name, link=link, nominal=nominal, transport=transport, uncertainty=0.2)
    framed = FRAMES * nominal
    carried = (framed**-2 + TCP_LIMIT**-2) ** -0.5
    uncertainty = 0.02 + 0.35 * framed / (framed + TCP_LIMIT)
    return NamedLink(name=name, link=Link(bandwidth=carried, latency=wait), nominal=nominal, transport="tcp",
                     uncertainty=uncertainty)  # fmt: skip


def _unknown(text: str) -> ConfigError:
    known = [*INSIDE, *INFINIBAND, "10gbit", "25gbit", "100gbit"]
    hint = suggestion(text, known).split(" (known")[0] if suggestion(text, known).startswith("did") else None
    usual = 'use a rate such as 10gbit, "100gbit rdma", 2xEDR, or a name: ' + ", ".join([*INFINIBAND, *INSIDE])
    return ConfigError(f'there is no link "{text}"', hint=usual if hint is None else f"{hint} or {usual}")
