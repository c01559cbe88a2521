"""Links by the names people give them, and what training really gets out of them.

The numbers are those of NCCL's all-reduce as it is commonly measured; docs/prediction.md says where each comes from.
"""

import re
from dataclasses import dataclass
from typing import Literal

from paceline.analysis.fabric import Link
from paceline.core.errors import ConfigError
from paceline.core.names import suggestion
from paceline.core.units import parse_rate

Transport = Literal["tcp", "rdma", "local"]

FRAMES = 1448 / 1514
"""Payload in an Ethernet frame of TCP over IPv4 with time stamps and an MTU of 1500."""
TCP_LIMIT = 22e9 / 8
"""Bytes a second that the sockets of one host move, however fast the link: copying and interrupts."""
RDMA_SHARE = 0.88
"""Part of the line rate that a large all-reduce gets over InfiniBand or RoCE."""
LATENCIES: dict[Transport, float] = {"tcp": 30e-6, "rdma": 8e-6, "local": 4e-6}
"""Seconds per hop of an all-reduce, software included."""

INSIDE = {"nvlink": 120e9, "nvlink1": 55e9, "nvlink2": 120e9, "nvlink3": 220e9, "nvlink4": 360e9, "nvswitch": 130e9,
          "pcie": 7e9, "pcie3": 7e9, "pcie4": 14e9, "pcie5": 28e9, "memory": 3e9}  # fmt: skip
"""Bus bandwidth of an all-reduce over all devices of a node. nvlink and nvlink2 are V100, nvlink1 is P100."""
INFINIBAND = {"qdr": 32e9, "fdr": 56e9, "edr": 100e9, "hdr": 200e9, "ndr": 400e9}
RDMA_WORDS = ("rdma", "roce", "ib", "infiniband", "efa")
TCP_WORDS = ("tcp", "ethernet", "sockets", "")
NAMED = re.compile(r"(?:(\d+)\s*[x×]\s*)?(\S+?)(?:[\s\-]+([a-z]+))?", re.IGNORECASE)

APART = re.compile(r"(?<=\d)\s+(?=[kmgt]?b)", re.IGNORECASE)
"""The space in "10 Gbit/s"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedLink:
    """A link as it was named, what it carries, and by which part that may be wrong."""

    name: str
    link: Link
    nominal: float
    """Bytes a second on the box."""
    transport: Transport
    doubt: float
    """Standard deviation of the logarithm of its bandwidth."""


def find_inside(text: str) -> NamedLink:
    """Return the link inside a node that "nvlink", "pcie" or a rate such as "10GB/s" means."""
    if text.strip().lower() in INSIDE:
        return find_link(text)
    nominal = _rate(APART.sub("", text.strip()), text)
    link = Link(bandwidth=nominal, latency=LATENCIES["local"])
    return NamedLink(name=text, link=link, nominal=nominal, transport="local", doubt=0.1)


def find_link(text: str, *, latency: float | None = None) -> NamedLink:
    """Return the link that "25gbit", "100gbit rdma", "4xEDR", "nvlink" or "pcie" means."""
    name = text.strip().lower()
    if name in INSIDE:
        link = Link(bandwidth=INSIDE[name], latency=LATENCIES["local"] if latency is None else latency)
        return NamedLink(name=name, link=link, nominal=INSIDE[name], transport="local", doubt=0.25)
    match = NAMED.fullmatch(APART.sub("", text.strip()))
    if match is None:
        raise _unknown(text)
    number, rate, word = int(match[1] or 1), match[2], (match[3] or "").lower()
    if rate.lower() in INFINIBAND:
        return _between(text, number * INFINIBAND[rate.lower()] / 8, "rdma", latency)
    if word in RDMA_WORDS or word in TCP_WORDS:
        nominal = _rate(rate, text)
        return _between(text, number * nominal, "rdma" if word in RDMA_WORDS else "tcp", latency)
    raise _unknown(text)


def _rate(rate: str, text: str) -> float:
    try:
        nominal = parse_rate(rate)
    except ValueError:
        raise _unknown(text) from None
    if nominal <= 0:
        raise ConfigError(f'a link of "{text}" carries nothing', hint="give a rate above 0, such as 10gbit")
    return nominal


def _between(name: str, nominal: float, transport: Transport, latency: float | None) -> NamedLink:
    """Return a link between nodes: RDMA gets a part of the line, TCP is held up by the host as well."""
    wait = LATENCIES[transport] if latency is None else latency
    if transport == "rdma":
        link = Link(bandwidth=RDMA_SHARE * nominal, latency=wait)
        return NamedLink(name=name, link=link, nominal=nominal, transport=transport, doubt=0.2)
    framed = FRAMES * nominal
    carried = (framed**-2 + TCP_LIMIT**-2) ** -0.5
    doubt = 0.02 + 0.35 * framed / (framed + TCP_LIMIT)
    return NamedLink(name=name, link=Link(bandwidth=carried, latency=wait), nominal=nominal, transport="tcp",
                     doubt=doubt)  # fmt: skip


def _unknown(text: str) -> ConfigError:
    known = [*INSIDE, *INFINIBAND, "10gbit", "25gbit", "100gbit"]
    hint = suggestion(text, known).split(" (known")[0] if suggestion(text, known).startswith("did") else None
    usual = 'use a rate such as 10gbit, "100gbit rdma", 2xEDR, or a name: ' + ", ".join([*INFINIBAND, *INSIDE])
    return ConfigError(f'there is no link "{text}"', hint=usual if hint is None else f"{hint} or {usual}")
