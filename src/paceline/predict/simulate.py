"""Simulates a training step: gradient buckets become ready in the backward pass and queue for the wire."""

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from paceline.predict.fabric import Fabric, Quantity

QUEUE = 2.0
"""How well the input pipeline and computing hide each other; without any variation it would be infinite."""
SLOWEST = 0.1
"""Minimum fraction of speed that computing keeps during communication."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """The workload of one rank per step or micro-batch: compute times in seconds, and bytes of gradients."""

    forward: Quantity
    backward: Quantity
    update: Quantity
    """The optimizer and everything else after the gradients: once per step."""
    other: Quantity = 0.0
    """Waiting for data, copying it, and time outside all phases."""
    ready: tuple[float, ...]
    """When each bucket is complete, as a fraction of the backward pass."""
    sizes: tuple[float, ...]
    """Bytes of each bucket, in the order in which they are sent."""
    samples_per_rank: float = 1.0
    """Samples per micro-batch."""
    spread: Quantity = 0.0
    """Relative standard deviation of a rank's compute time from step to step: the slowest of n ranks sets the pace."""
    in_flight: int = 1
    """All-reduces in flight at once: 1 for NCCL's stream, 2 for gloo's threads."""
    slowdown: Quantity = 0.0
    """Fraction of speed that computing loses during communication: SMs of a GPU that run NCCL."""
    steal: Quantity = 0.0
    """Seconds of compute time lost per byte sent: a CPU moves gradients itself."""

    @property
    def compute(self) -> Quantity:
        """Seconds of a step without communication."""
        return self.forward + self.backward + self.update + self.other

    @property
    def gradient_bytes(self) -> float:
        """Bytes of gradients per rank and step."""
        return sum(self.sizes)

    def scaled(self, factor: Quantity) -> "Workload":
        """Return the workload with its compute times multiplied."""
        parts = {name: getattr(self, name) * factor for name in ("forward", "backward", "update", "other")}
        return replace(self, **parts)

    def compressed(self, factor: float) -> "Workload":
        """Return the workload with the gradient bytes multiplied."""
        return replace(self, sizes=tuple(size * factor for size in self.sizes))

    def with_samples(self, num_samples: float, *, fixed: Quantity = 0.0) -> "Workload":
        """Return the workload of another number of samples; the fraction `fixed` of its compute time stays the same."""
        factor = fixed + (1 - fixed) * num_samples / self.samples_per_rank
        parts = {name: getattr(self, name) * factor for name in ("forward", "backward", "other")}
        return replace(self, samples_per_rank=num_samples, **parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Overhead:
    """The cost of training on several ranks that neither computing nor the wire accounts for."""

    fraction: Quantity = 0.0
    """Of the compute time of the micro-batch that synchronises gradients."""
    seconds: Quantity = 0.0
    """Per step."""
    per_doubling: Quantity = 0.0
    """Fraction of the compute time of that micro-batch, for each doubling of the nodes."""
    overlap: Quantity = 1.0
    """Fraction of the overlap with the backward pass that is reached: 0 if gradients are sent after it."""
    data_rate: Quantity = math.inf
    """Samples per second that the input pipeline of a node can prepare."""
    remote_data: float = 1.0
    """Fraction of that rate if there are several nodes."""


NO_OVERHEAD = Overhead()


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedStep:
    """The result of a simulated step; times are from its start."""

    seconds: Quantity
    exposed: Quantity
    """Seconds of exposed communication."""
    buckets: tuple[tuple[Quantity, Quantity, Quantity], ...]
    """When each bucket was ready, was sent, and was averaged."""


def simulate_step(
    workload: Workload, fabric: Fabric, ranks: int, *, accumulate: int = 1, overhead: Overhead = NO_OVERHEAD
) -> SimulatedStep:
    """Simulate one step of `accumulate` micro-batches, of which only the last synchronises gradients."""
    work = workload.scaled(1 + workload.spread * expected_maximum(ranks))
    begins = (accumulate - 1) * (work.other + work.forward + work.backward)
    if ranks == 1:
        ends = begins + work.other + work.forward + work.backward
        return SimulatedStep(seconds=ends + work.update, exposed=0.0, buckets=())
    more = (2 + math.log2(min(max(ranks, 2), max(fabric.per_node, 2)))) / 5
    work = work.scaled(1 + overhead.fraction * more + overhead.per_doubling * math.log2(fabric.nodes(ranks)))
    begins = begins + work.other + work.forward
    wire = _Wire(work, fabric, ranks)
    for part, size in zip(work.ready, work.sizes, strict=True):
        wire.send(part * work.backward, size)
    computed = wire.wall(work.backward)
    done = overhead.overlap * np.maximum(computed, wire.end) + (1 - overhead.overlap) * (work.backward + wire.busy)
    seconds = begins + done + work.update + overhead.seconds * more
    rate = overhead.data_rate * (overhead.remote_data if fabric.nodes(ranks) > 1 else 1.0)
    loading = accumulate * work.samples_per_rank * min(ranks, fabric.per_node) / rate
    return SimulatedStep(
        seconds=_joined(seconds, loading),
        exposed=np.maximum(done - computed, 0.0),
        buckets=tuple((begins + r, begins + s, begins + e) for r, s, e in wire.bucket_times),
    )


def _joined(computing: Quantity, loading: Quantity) -> Quantity:
    """Return the seconds of a step beside which the input pipeline runs: near the longer of both.

    Both vary from step to step, and a short queue of batches lies between them.
    """
    return (computing**QUEUE + loading**QUEUE) ** (1 / QUEUE)


class _Wire:
    """The wire during one backward pass: first come, first served; computing is slower while it is busy."""

    def __init__(self, work: Workload, fabric: Fabric, ranks: int) -> None:
        self._fabric = fabric
        self._ranks = ranks
        self._queues: list[Quantity] = [0.0] * work.in_flight
        self._spans: list[tuple[Quantity, Quantity, Quantity, Quantity]] = []
        rate = fabric.slowest(ranks).bandwidth
        self._pace = np.maximum(1 - work.slowdown - work.steal * rate, SLOWEST)
        self.end: Quantity = 0.0
        self.busy: Quantity = 0.0
        self.bucket_times: list[tuple[Quantity, Quantity, Quantity]] = []

    def send(self, computed: Quantity, size: float) -> None:
        """Send a bucket that is complete after `computed` seconds of computing."""
        cost = self._fabric.cost(size, self._ranks)
        ready = self.wall(computed)
        queue = len(self.bucket_times) % len(self._queues)
        begins = np.maximum(ready, self._queues[queue])
        ends = np.maximum(begins + cost.wait, self.end) + cost.wire
        self.busy = self.busy + cost.seconds
        self._remember(np.maximum(begins, self.end), ends)
        self._queues[queue] = self.end = ends
        self.bucket_times.append((ready, begins, ends))

    def wall(self, computed: Quantity) -> Quantity:
        """Return the time at which a rank has done `computed` seconds of computing at full speed."""
        time = computed
        for begins, ends, done_before, done_after in self._spans:
            inside = begins + (computed - done_before) / self._pace
            time = np.where(computed <= done_before, time, np.where(
                computed < done_after, inside, ends + computed - done_after))  # fmt: skip
        return time

    def _remember(self, begins: Quantity, ends: Quantity) -> None:
        """Record a span in which the wire is busy, with the computed seconds at both ends."""
        done_before: Quantity = begins
        if self._spans:
            _, last, _, done_last = self._spans[-1]
            done_before = done_last + begins - last
        self._spans.append((begins, ends, done_before, done_before + (ends - begins) * self._pace))


def expected_maximum(ranks: int) -> float:
    """Return the mean of the largest of n draws from a normal distribution, in standard deviations (Blom)."""
    if ranks <= 1:
        return 0.0
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 2 else 1 / math.sqrt(math.pi)


def trivial_step(workload: Workload, fabric: Fabric, ranks: int, *, accumulate: int = 1) -> Quantity:
    """Return the step time by a simple rule: forward + max(backward, communication) + update."""
    cost = fabric.cost(workload.gradient_bytes, ranks)
    alone = workload.other + workload.forward
    free = (accumulate - 1) * (alone + workload.backward)
    return free + alone + np.maximum(workload.backward, cost.wire) + workload.update
