"""One training step, simulated: buckets of gradients become ready in the backward pass and queue for the wire."""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from paceline.analysis.fabric import Fabric, Quantity

SLOWEST = 0.1
"""Part of its speed that computing keeps whatever travels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """What one rank does alone in a step, or in each part of an accumulated one; seconds, and bytes of gradients."""

    forward: Quantity
    backward: Quantity
    update: Quantity
    """The optimizer, and whatever else comes after the gradients: once a step."""
    other: Quantity = 0.0
    """Waiting for data, copying it, and all that belongs to no part."""
    ready: tuple[float, ...]
    """When each bucket is complete, as a part of the backward pass."""
    sizes: tuple[float, ...]
    """Bytes of each bucket, in the order in which they are sent."""
    images_per_rank: float = 1.0
    """Images that a rank computes at once."""
    spread: Quantity = 0.0
    """Standard deviation of a rank's computing from step to step, as a part of it: the slowest of n ranks rules."""
    lanes: int = 1
    """All-reduces under way at once: 1 for NCCL's stream, 2 for gloo's threads."""
    slowdown: Quantity = 0.0
    """Part of its speed that computing loses while gradients travel: a GPU's units that move them."""
    steal: Quantity = 0.0
    """Seconds of computing lost for every byte passed on: a CPU moves gradients itself."""

    @property
    def compute(self) -> Quantity:
        """Seconds of a step without communication."""
        return self.forward + self.backward + self.update + self.other

    @property
    def gradient_bytes(self) -> float:
        """Bytes that every rank contributes to a step."""
        return sum(self.sizes)

    def scaled(self, factor: Quantity) -> "Workload":
        """Return the same work at another pace."""
        parts = {name: getattr(self, name) * factor for name in ("forward", "backward", "update", "other")}
        return replace(self, **parts)

    def compressed(self, factor: float) -> "Workload":
        """Return the same work with gradients that take a part of the bytes."""
        return replace(self, sizes=tuple(size * factor for size in self.sizes))

    def with_images(self, images: float, *, fixed: Quantity = 0.0) -> "Workload":
        """Return the work of another number of images, of which a part `fixed` of today's computing does not depend."""
        factor = fixed + (1 - fixed) * images / self.images_per_rank
        parts = {name: getattr(self, name) * factor for name in ("forward", "backward", "other")}
        return replace(self, images_per_rank=images, **parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """How a simulated step went; times count from its start."""

    seconds: Quantity
    exposed: Quantity
    """Seconds in which a rank only waits for gradients."""
    communication: Quantity
    """Seconds in which gradients are under way."""
    backward_begins: Quantity
    backward_ends: Quantity
    buckets: tuple[tuple[Quantity, Quantity, Quantity], ...]
    """When each bucket was ready, began to travel, and had arrived."""


def simulate_step(
    workload: Workload, fabric: Fabric, ranks: int, *, accumulate: int = 1, overhead: Quantity = 0.0
) -> Step:
    """Simulate one step of `accumulate` micro-batches, of which only the last exchanges gradients.

    `overhead` is the part of its computing that this costs the last one.
    """
    work = workload.scaled(1 + workload.spread * expected_maximum(ranks))
    begins = (accumulate - 1) * (work.other + work.forward + work.backward)
    if ranks > 1:
        work = work.scaled(1 + overhead)
    begins = begins + work.other + work.forward
    if ranks == 1:
        ends = begins + work.backward
        return Step(seconds=ends + work.update, exposed=0.0, communication=0.0, backward_begins=begins,
                    backward_ends=ends, buckets=())  # fmt: skip
    wire = _Wire(work, fabric, ranks)
    for part, size in zip(work.ready, work.sizes, strict=True):
        wire.send(part * work.backward, size)
    computed = wire.wall(work.backward)
    done = np.maximum(computed, wire.end)
    return Step(
        seconds=begins + done + work.update,
        exposed=done - computed,
        communication=wire.busy_seconds,
        backward_begins=begins,
        backward_ends=begins + computed,
        buckets=tuple((begins + r, begins + s, begins + e) for r, s, e in wire.trips),
    )


class _Wire:
    """The wire during one backward pass: first come, first served; computing is slower while it is busy."""

    def __init__(self, work: Workload, fabric: Fabric, ranks: int) -> None:
        self._fabric = fabric
        self._ranks = ranks
        self._lanes: list[Quantity] = [0.0] * work.lanes
        self._spans: list[tuple[Quantity, Quantity, Quantity, Quantity]] = []
        rate = fabric.slowest(ranks).bandwidth
        self._pace = np.maximum(1 - work.slowdown - work.steal * rate, SLOWEST)
        self.end: Quantity = 0.0
        self.busy_seconds: Quantity = 0.0
        self.trips: list[tuple[Quantity, Quantity, Quantity]] = []

    def send(self, computed: Quantity, size: float) -> None:
        """Send a bucket that is complete after so many seconds of computing."""
        cost = self._fabric.cost(size, self._ranks)
        ready = self.wall(computed)
        lane = len(self.trips) % len(self._lanes)
        begins = np.maximum(ready, self._lanes[lane])
        ends = np.maximum(begins + cost.wait, self.end) + cost.wire
        self._remember(np.maximum(begins, self.end), ends)
        self._lanes[lane] = self.end = ends
        self.trips.append((ready, begins, ends))

    def wall(self, computed: Quantity) -> Quantity:
        """Return when a rank has computed for so many seconds at full speed."""
        time = computed
        for begins, ends, done_before, done_after in self._spans:
            inside = begins + (computed - done_before) / self._pace
            time = np.where(computed <= done_before, time, np.where(
                computed < done_after, inside, ends + computed - done_after))  # fmt: skip
        return time

    def _remember(self, begins: Quantity, ends: Quantity) -> None:
        """Note a span in which the wire is busy, and how far computing has come at both its ends."""
        done_before: Quantity = begins
        if self._spans:
            _, last, _, done_last = self._spans[-1]
            done_before = done_last + begins - last
        self._spans.append((begins, ends, done_before, done_before + (ends - begins) * self._pace))
        self.busy_seconds = self.busy_seconds + ends - begins


def expected_maximum(ranks: int) -> float:
    """Return the mean of the largest of n draws from a normal distribution, in standard deviations (Blom)."""
    if ranks <= 1:
        return 0.0
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 2 else 1 / math.sqrt(math.pi)


def trivial_step(workload: Workload, fabric: Fabric, ranks: int, *, accumulate: int = 1) -> Quantity:
    """Return the step by the rule that needs no simulator: forward + max(backward, communication) + update."""
    cost = fabric.cost(workload.gradient_bytes, ranks)
    alone = workload.other + workload.forward
    free = (accumulate - 1) * (alone + workload.backward)
    return free + alone + np.maximum(workload.backward, cost.wire) + workload.update
