"""What a number of ranks would do: step time, efficiency, break-even bandwidth, best batch and cost, with intervals.

The interval comes from drawing possible worlds: every quantity that is not known for sure is an array whose first
element is the best guess, and all worlds are simulated at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paceline.analysis.fabric import Fabric, Link, Quantity
from paceline.analysis.simulate import Step, Workload, simulate_step, trivial_step

WORLDS = 400
LOW, HIGH = 5, 95
"""Percentiles between which nine of ten worlds lie."""
GOOD = 0.9
"""Efficiency from which a batch is called large enough."""
LARGEST_BATCH = 2**20
FASTEST, SLOWEST = 1e13, 1e2
"""Bytes a second between which a break-even bandwidth is looked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Doubt:
    """How far the best guesses may be off: standard deviations of their logarithms."""

    pace: float = 0.0
    """Of all computing."""
    inter: float = 0.0
    intra: float = 0.0
    latency: float = 0.0
    loss: float = 0.0
    """Of stragglers, slowdown and overhead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """What is predicted: work on ranks over a fabric."""

    workload: Workload
    """Of a part: what a rank computes at once. A step has `accumulate` of them."""
    fabric: Fabric
    doubt: Doubt
    overhead: Quantity = 0.0
    """Part of its computing that the exchange of gradients costs a rank, however many ranks there are."""
    global_batch: float | None = None
    """Images of a step over all ranks (strong scaling), or None where each part has as many as the workload (weak)."""
    fixed: float = 0.0
    """Part of computing that does not depend on the number of images."""
    accumulate: int = 1
    total_images: float | None = None
    """Images to train on, for time and cost."""
    price: float | None = None
    """Of a device for an hour."""

    def images_per_rank(self, ranks: int) -> float:
        """Return how many images a rank has in a step, all its micro-batches together."""
        if self.global_batch is None:
            return self.workload.images_per_rank * self.accumulate
        return self.global_batch / ranks


@dataclass(frozen=True, slots=True)
class Estimate:
    """A best guess, and the interval that holds the truth nine times of ten."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """What a number of ranks would do; seconds, images a second, bytes a second, device-hours."""

    ranks: int
    nodes: int
    images_per_rank: float
    """Of a step, all its micro-batches together."""
    accumulate: int
    step: Estimate
    throughput: Estimate
    efficiency: Estimate
    exposed: Estimate
    break_even: Estimate
    """Bandwidth from which these ranks are faster than one node (than one rank, within a node)."""
    link_for_good: Estimate
    """Bandwidth from which their efficiency is at least 90%."""
    best_batch: Estimate
    """Fewest images of a rank in a step, each part a power of two, with an efficiency of at least 90%; infinite where
    none has."""
    finish: Estimate | None
    device_hours: Estimate | None
    cost: Estimate | None
    trivial_step: float
    trivial_efficiency: float


def predict(case: Case, ranks: int) -> Prediction:
    """Return what so many ranks would do."""
    worlds = draw_worlds(case)
    images = case.images_per_rank(ranks)
    step = step_of(worlds, ranks)
    exposed = _simulated(worlds, ranks).exposed
    efficiency = efficiency_of(worlds, ranks, images)
    throughput = ranks * images / step
    finish = None if case.total_images is None else case.total_images / throughput
    hours = None if finish is None else finish * ranks / 3600
    trivial = _trivial(case, ranks)
    alone = float(np.mean(step_of(case, 1)))
    return Prediction(
        ranks=ranks,
        nodes=case.fabric.nodes(ranks),
        images_per_rank=images,
        accumulate=case.accumulate,
        step=estimate(step),
        throughput=estimate(throughput),
        efficiency=estimate(efficiency),
        exposed=estimate(exposed),
        break_even=estimate(_break_even(worlds, ranks)),
        link_for_good=estimate(_link_for_good(worlds, ranks)),
        best_batch=estimate(_best_batch(worlds, ranks)),
        finish=None if finish is None else estimate(finish),
        device_hours=None if hours is None else estimate(hours),
        cost=None if hours is None or case.price is None else estimate(hours * case.price),
        trivial_step=trivial,
        trivial_efficiency=alone * (1 if case.global_batch is None else 1 / ranks) / trivial,
    )


def draw_worlds(case: Case, number: int = WORLDS) -> Case:
    """Return the case with arrays for what is not sure; the first element of each is the best guess."""
    random = np.random.default_rng(0)  # the same worlds for the same question
    draws = iter(np.vstack([np.zeros(6), random.standard_normal((number, 6))]).T)

    def around(value: Quantity, doubt: float) -> Quantity:
        return value * np.exp(doubt * next(draws))

    doubt, work, fabric = case.doubt, case.workload, case.fabric
    work = work.scaled(around(1.0, doubt.pace))
    loss = around(1.0, doubt.loss)
    work = replace(work, spread=work.spread * loss, slowdown=np.minimum(work.slowdown * loss, 0.8))
    latency = around(1.0, doubt.latency)
    inter = _drawn(fabric.inter, around(1.0, doubt.inter), latency)
    intra = None if fabric.intra is None else _drawn(fabric.intra, around(1.0, doubt.intra), latency)
    return replace(case, workload=work, overhead=case.overhead * loss, fabric=replace(fabric, inter=inter, intra=intra))


def step_of(case: Case, ranks: int, images: float | None = None) -> Quantity:
    """Return the seconds of a step with the case's images, or with so many on each rank."""
    return _simulated(case, ranks, images).seconds


def efficiency_of(case: Case, ranks: int, images: float) -> Quantity:
    """Return images a second of a rank, as a part of what one rank does that has nobody to wait for."""
    alone_images = images if case.global_batch is None else images * ranks
    alone = step_of(case, 1, alone_images) / alone_images
    return alone / (step_of(case, ranks, images) / images)


def estimate(values: Quantity) -> Estimate:
    """Return the best guess and the interval of an array of worlds."""
    drawn = np.atleast_1d(np.asarray(values, dtype=float))
    rest = drawn[1:] if drawn.size > 1 else drawn
    low, high = np.percentile(rest, [LOW, HIGH], method="closest_observation")
    return Estimate(float(drawn[0]), min(float(low), float(drawn[0])), max(float(high), float(drawn[0])))


def _drawn(link: Link, factor: Quantity, latency: Quantity) -> Link:
    return replace(link, bandwidth=link.bandwidth * factor, latency=link.latency * latency)


def _work(case: Case, ranks: int, images: float | None) -> Workload:
    images = case.images_per_rank(ranks) if images is None else images
    return case.workload.with_images(images / case.accumulate, fixed=case.fixed)


def _simulated(case: Case, ranks: int, images: float | None = None) -> Step:
    work = _work(case, ranks, images)
    return simulate_step(work, case.fabric, ranks, accumulate=case.accumulate, overhead=case.overhead)


def _trivial(case: Case, ranks: int) -> float:
    return float(np.mean(trivial_step(_work(case, ranks, None), case.fabric, ranks, accumulate=case.accumulate)))


def _break_even(case: Case, ranks: int) -> Quantity:
    """Return the bandwidth at which the ranks are as fast as one node, or within a node as one rank."""
    few = case.fabric.per_node if case.fabric.nodes(ranks) > 1 else 1
    images = case.images_per_rank(ranks)
    few_images = images if case.global_batch is None else case.global_batch / few
    goal = few * few_images / step_of(case, few, few_images)
    return _least_bandwidth(case, ranks, lambda faster: ranks * images / step_of(faster, ranks, images) >= goal)


def _link_for_good(case: Case, ranks: int) -> Quantity:
    images = case.images_per_rank(ranks)
    return _least_bandwidth(case, ranks, lambda faster: efficiency_of(faster, ranks, images) >= GOOD)


def _least_bandwidth(case: Case, ranks: int, is_enough: Callable[[Case], Any]) -> Quantity:
    """Return the least bandwidth of the link in question that is enough: 0 where any is, infinite where none is."""
    size = np.shape(case.workload.forward)
    if ranks == 1:
        return np.zeros(size)
    low, high = np.full(size, SLOWEST), np.full(size, FASTEST)
    never = ~np.broadcast_to(is_enough(_with_bandwidth(case, ranks, high)), size)
    for _ in range(26):
        middle = np.sqrt(low * high)
        enough = is_enough(_with_bandwidth(case, ranks, middle))
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return np.where(never, np.inf, np.where(high < SLOWEST * 1.01, 0.0, high))


def _with_bandwidth(case: Case, ranks: int, bandwidth: Quantity) -> Case:
    """Return the case with another link between the nodes, or inside the only node."""
    fabric = case.fabric
    if fabric.nodes(ranks) == 1 and fabric.intra is not None:
        return replace(case, fabric=replace(fabric, intra=replace(fabric.intra, bandwidth=bandwidth)))
    return replace(case, fabric=replace(fabric, inter=replace(fabric.inter, bandwidth=bandwidth)))


def _best_batch(case: Case, ranks: int) -> Quantity:
    """Return the fewest images of a rank that keep the ranks busy, each part a power of two."""
    best = np.full(np.shape(case.workload.forward), np.inf)
    images = case.accumulate
    while images <= LARGEST_BATCH and np.isinf(best).any():
        good = efficiency_of(case, ranks, images) >= GOOD
        best = np.where(np.isinf(best) & good, images, best)
        images *= 2
    return best
