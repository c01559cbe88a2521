"""Bandwidth and latency of the link between ranks: all-reduces of several sizes, one and two at a time."""

import time

import torch
import torch.distributed as dist

from paceline.parallel.team import Team
from paceline.records.profile import LinkPoint

SMALL = 4096
MIDDLE = 1 << 20
LARGEST = 1 << 24
REPEATS = 5
SECONDS_EACH = 0.5
"""Target seconds for one large all-reduce: a slow link is measured with smaller ones."""


def sweep_link(team: Team) -> tuple[LinkPoint, ...]:
    """Time all-reduces from tiny to large, the large ones also two at a time. Collective.

    A shaped link lets a first burst pass at full speed, and gloo's threads hide each other's pauses, so only large
    messages two at a time show the sustained bandwidth for gradients.
    """
    if team.world.size == 1:
        return ()
    points = [time_all_reduce(team, SMALL, repeats=4 * REPEATS), time_all_reduce(team, MIDDLE, repeats=REPEATS)]
    large = min(LARGEST, max(MIDDLE, int(MIDDLE * SECONDS_EACH / points[-1].seconds) // MIDDLE * MIDDLE))
    large = team.from_lead(large)
    points.append(time_all_reduce(team, large, repeats=REPEATS))
    points.append(time_all_reduce(team, large, in_flight=2, repeats=REPEATS))
    return tuple(points)


def time_all_reduce(team: Team, num_bytes: int, *, in_flight: int = 1, repeats: int = REPEATS) -> LinkPoint:
    """Time all-reduces of one size over the group that carries the gradients. Collective: every rank must call it.

    Ranks do not start at exactly the same moment, so the longest time of any rank is used.
    """
    tensors = [torch.zeros(num_bytes // 4, device=team.device) for _ in range(in_flight)]
    samples = []
    for _ in range(repeats + 1):
        team.barrier()
        _wait_for(team.device)
        start = time.perf_counter()
        for work in [dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
            assert work is not None
            work.wait()
        _wait_for(team.device)
        samples.append(time.perf_counter() - start)
    by_rank = team.gather(samples[1:])  # the first one warms up
    return LinkPoint(bytes=num_bytes, in_flight=in_flight, samples=tuple(map(max, zip(*by_rank, strict=True))))


def link_latency(points: tuple[LinkPoint, ...], world_size: int) -> float:
    """Return the latency of one message in seconds; a ring sends 2·(W-1) of them in sequence."""
    return min(points[0].samples) / (2 * (world_size - 1)) if points else 0.0


def link_bandwidth(points: tuple[LinkPoint, ...], world_size: int) -> float:
    """Return the bus bandwidth in bytes per second: every rank sends 2·(W-1)/W of a buffer.

    The fastest of a few is used: the link did not cause the delays of the others.
    """
    if not points:
        return 0.0
    last = points[-1]
    return 2 * (world_size - 1) / world_size * last.bytes * last.in_flight / min(last.samples)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
