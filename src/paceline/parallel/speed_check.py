"""The speed of every rank and link: a timed matrix product, memory copy and exchange in pairs; which are outliers."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist

from paceline.core.units import bit_rate, size
from paceline.parallel.team import Team

SIDE = {"cpu": 512, "other": 4096}
"""Rows and columns of the matrices that are multiplied."""
COPY_BYTES = 1 << 26
PAIR_BYTES = 1 << 20
REPEATS = 7
PAIR_REPEATS = 3
LEAST_SPEED = 0.7
"""Fraction of the median of the others below which a rank is an outlier; ranks of one kind differ by a tenth."""
LEAST_LINK = 0.5
MOST_HOSTS = 64
"""Hosts up to which all pairs are timed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSpeed:
    """What one rank computes and copies, while all ranks do."""

    rank: int
    host: str
    flops: float
    """Floating-point operations per second of a product of fp32 matrices."""
    copy_rate: float
    """Bytes per second that are read and written in a copy within the memory of the device."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkPair:
    """Two ranks that sent to each other at the same time."""

    first: int
    second: int
    rate: float
    """Bytes per second in each direction."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Speeds:
    """The speeds of all ranks, and of the links between hosts, or between the ranks of a single host."""

    ranks: tuple[RankSpeed, ...]
    pairs: tuple[LinkPair, ...] = ()


def measure_speeds(team: Team) -> Speeds:
    """Time compute and memory on all ranks at once, then the links. Collective: every rank must call it."""
    team.barrier()
    flops = 2 * _side(team.device) ** 3 / time_product(team.device)
    copied = 2 * COPY_BYTES / time_copy(team.device)
    own = RankSpeed(rank=team.world.rank, host=team.world.host, flops=flops, copy_rate=copied)
    ranks = team.gather(own)
    return Speeds(ranks=tuple(ranks), pairs=time_pairs(team, representatives(ranks)))


def time_product(device: torch.device) -> float:
    """Return the seconds of a product of matrices: the best of a few."""
    side = _side(device)
    first, second = torch.ones(side, side, device=device), torch.ones(side, side, device=device)
    return _best(lambda: torch.mm(first, second), device)


def time_copy(device: torch.device) -> float:
    """Return the seconds of a copy: the best of a few."""
    source = torch.zeros(COPY_BYTES // 4, device=device)
    target = torch.empty_like(source)
    return _best(lambda: target.copy_(source), device)


def representatives(ranks: Sequence[RankSpeed]) -> list[int]:
    """Return the ranks whose links are timed: the first of each host, or all ranks of a single host."""
    first = {rank.host: rank.rank for rank in reversed(ranks)}
    return sorted(first.values()) if len(first) > 1 else [rank.rank for rank in ranks]


def rounds(players: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Return rounds of disjoint pairs, in which everyone meets everyone once (a round-robin tournament)."""
    circle: list[int | None] = [*players, *([None] if len(players) % 2 else [])]
    half, found = len(circle) // 2, []
    for _ in range(len(circle) - 1):
        pairs = zip(circle[:half], reversed(circle[half:]), strict=True)
        found.append([(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None])
        circle = [circle[0], circle[-1], *circle[1:-1]]
    return found


def time_pairs(team: Team, players: Sequence[int]) -> tuple[LinkPair, ...]:
    """Time exchanges between all pairs of these ranks, each rank with one other at a time. Collective."""
    if not 2 <= len(players) <= MOST_HOSTS:
        return ()
    own: list[LinkPair] = []
    for pairs in rounds(players):
        mine = next((pair for pair in pairs if team.world.rank in pair), None)
        team.barrier()
        if mine is not None:
            own.append(_exchange(team, *mine))
    every = [pair for pairs in team.gather(own) for pair in pairs]
    slower = {(pair.first, pair.second): pair for pair in sorted(every, key=lambda pair: -pair.rate)}
    return tuple(slower[key] for key in sorted(slower))


def _exchange(team: Team, first: int, second: int) -> LinkPair:
    other = second if team.world.rank == first else first
    sent = torch.zeros(PAIR_BYTES // 4, device=team.device)
    received = torch.empty_like(sent)

    def exchange() -> None:
        works = [dist.isend(sent, other), dist.irecv(received, other)]
        for work in works if team.world.rank == first else reversed(works):
            assert work is not None
            work.wait()

    return LinkPair(first=first, second=second, rate=PAIR_BYTES / _best(exchange, team.device, PAIR_REPEATS))


def _best(work: Callable[[], object], device: torch.device, repeats: int = REPEATS) -> float:
    """Return the shortest time of a few; others have shared the core with something else, or warmed up."""
    seconds = []
    for _ in range(repeats + 1):
        _wait_for(device)
        start = time.perf_counter()
        work()
        _wait_for(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def _wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _side(device: torch.device) -> int:
    return SIDE.get(device.type, SIDE["other"])


def outliers(speeds: Speeds) -> list[str]:
    """Return a sentence for every rank and host that is much slower than the others."""
    flops = {(rank.rank, rank.host): rank.flops for rank in speeds.ranks}
    copies = {(rank.rank, rank.host): rank.copy_rate for rank in speeds.ranks}
    hosts = {rank.rank: rank.host for rank in speeds.ranks}
    links = {
        (rank, hosts[rank]): median([pair.rate for pair in speeds.pairs if rank in (pair.first, pair.second)])
        for rank in {rank for pair in speeds.pairs for rank in (pair.first, pair.second)}
    }
    found = _slow(flops, "computes at", lambda rate: f"{rate / 1e9:.3g} GFLOP/s", LEAST_SPEED)
    found += _slow(copies, "copies memory at", lambda rate: f"{size(rate)}/s", LEAST_SPEED)
    # of two links ends nobody knows which is slow
    return found + (_slow(links, "exchanges data at", bit_rate, LEAST_LINK) if len(links) > 2 else [])


def _slow(rates: dict[tuple[int, str], float], verb: str, text: Callable[[float], str], least: float) -> list[str]:
    found = []
    for (rank, host), rate in rates.items():
        others = [other for key, other in rates.items() if key != (rank, host)]
        if others and rate < least * median(others):
            found.append(f"rank {rank} on {host} {verb} {text(rate)}, the others at {text(median(others))}")
    return found


def speeds_text(speeds: Speeds) -> str:
    """Return the range of speeds in a line."""
    flops = [rank.flops / 1e9 for rank in speeds.ranks]
    copies = [rank.copy_rate for rank in speeds.ranks]
    parts = [
        f"compute {_range(flops, '{:.3g}'.format)} GFLOP/s",
        f"memory {_range(copies, lambda rate: f'{size(rate)}/s')}",
    ]
    if speeds.pairs:
        parts.append(f"links {_range([pair.rate for pair in speeds.pairs], bit_rate)}")
    return ", ".join(parts)


def _range(values: Sequence[float], text: Callable[[float], str]) -> str:
    ends = dict.fromkeys([text(min(values)), text(max(values))])
    return " to ".join(ends)
