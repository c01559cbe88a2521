"""Prediction for a number of ranks: step time, efficiency, break-even bandwidth, best batch and cost, with intervals.

The interval comes from random draws: every uncertain quantity is an array whose first element is the best guess, and
all draws are simulated at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paceline.predict.fabric import Fabric, Link, Quantity
from paceline.predict.simulate import SimulatedStep, Workload, simulate_step, trivial_step

NUM_DRAWS = 400
LOW, HIGH = 5, 95
"""Percentiles of the 90% interval."""
GOOD = 0.9
"""Efficiency from which a batch counts as large enough."""
LARGEST_BATCH = 2**20
FASTEST, SLOWEST = 1e13, 1e2
"""Range of the search for a break-even bandwidth, in bytes per second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Uncertainty:
    """Uncertainty of the best guesses: standard deviations of their logarithms."""

    pace: float = 0.0
    """Of all compute times."""
    inter: float = 0.0
    intra: float = 0.0
    latency: float = 0.0
    loss: float = 0.0
    """Of stragglers, slowdown and overhead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """The case to predict: a workload on ranks over a fabric."""

    workload: Workload
    """The workload of one micro-batch. A step has `accumulate` of them."""
    fabric: Fabric
    uncertainty: Uncertainty
    overhead: Quantity = 0.0
    """Fraction of a rank's compute time that gradient synchronisation costs, with any number of ranks."""
    global_batch: float | None = None
    """Samples per step over all ranks (strong scaling); None for those of the workload per micro-batch (weak)."""
    fixed: float = 0.0
    """Fraction of the compute time that does not depend on the number of samples."""
    accumulate: int = 1
    total_samples: float | None = None
    """Samples to train on, for time and cost."""
    price: float | None = None
    """Price per device and hour."""

    def samples_per_rank(self, ranks: int) -> float:
        """Return the samples per rank and step, over all its micro-batches."""
        if self.global_batch is None:
            return self.workload.samples_per_rank * self.accumulate
        return self.global_batch / ranks


@dataclass(frozen=True, slots=True)
class Estimate:
    """A best guess, and its 90% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The prediction for a number of ranks; seconds, samples per second, bytes per second, device-hours."""

    ranks: int
    nodes: int
    samples_per_rank: float
    """Samples per step, over all its micro-batches."""
    accumulate: int
    step: Estimate
    throughput: Estimate
    efficiency: Estimate
    exposed: Estimate
    break_even: Estimate
    """Smallest bandwidth at which these ranks are faster than one node (within a node: than one rank)."""
    link_for_good: Estimate
    """Smallest bandwidth for an efficiency of at least 90%."""
    best_batch: Estimate
    """Fewest samples per rank and step, each micro-batch a power of two, with an efficiency of at least 90%; infinite
    if there is none."""
    finish: Estimate | None
    device_hours: Estimate | None
    cost: Estimate | None
    trivial_step: float
    trivial_efficiency: float


def predict(case: Case, ranks: int) -> Prediction:
    """Return the prediction for this number of ranks."""
    drawn = draw_case(case)
    per_rank = case.samples_per_rank(ranks)
    step = step_of(drawn, ranks)
    exposed = _simulated(drawn, ranks).exposed
    efficiency = efficiency_of(drawn, ranks, per_rank)
    throughput = ranks * per_rank / step
    finish = None if case.total_samples is None else case.total_samples / throughput
    hours = None if finish is None else finish * ranks / 3600
    trivial = _trivial(case, ranks)
    alone = float(np.mean(step_of(case, 1)))
    return Prediction(
        ranks=ranks,
        nodes=case.fabric.nodes(ranks),
        samples_per_rank=per_rank,
        accumulate=case.accumulate,
        step=estimate(step),
        throughput=estimate(throughput),
        efficiency=estimate(efficiency),
        exposed=estimate(exposed),
        break_even=estimate(_break_even(drawn, ranks)),
        link_for_good=estimate(_link_for_good(drawn, ranks)),
        best_batch=estimate(_best_batch(drawn, ranks)),
        finish=None if finish is None else estimate(finish),
        device_hours=None if hours is None else estimate(hours),
        cost=None if hours is None or case.price is None else estimate(hours * case.price),
        trivial_step=trivial,
        trivial_efficiency=alone * (1 if case.global_batch is None else 1 / ranks) / trivial,
    )


def draw_case(case: Case, number: int = NUM_DRAWS) -> Case:
    """Return the case with arrays of draws for uncertain values; the first element of each is the best guess."""
    random = np.random.default_rng(0)  # the same draws for the same case
    draws = iter(np.vstack([np.zeros(6), random.standard_normal((number, 6))]).T)

    def around(value: Quantity, uncertainty: float) -> Quantity:
        return value * np.exp(uncertainty * next(draws))

    uncertainty, work, fabric = case.uncertainty, case.workload, case.fabric
    work = work.scaled(around(1.0, uncertainty.pace))
    loss = around(1.0, uncertainty.loss)
    work = replace(work, spread=work.spread * loss, slowdown=np.minimum(work.slowdown * loss, 0.8))
    latency = around(1.0, uncertainty.latency)
    inter = _drawn(fabric.inter, around(1.0, uncertainty.inter), latency)
    intra = None if fabric.intra is None else _drawn(fabric.intra, around(1.0, uncertainty.intra), latency)
    return replace(case, workload=work, overhead=case.overhead * loss, fabric=replace(fabric, inter=inter, intra=intra))


def step_of(case: Case, ranks: int, per_rank: float | None = None) -> Quantity:
    """Return the seconds of a step with the case's batch, or with `per_rank` samples on each rank."""
    return _simulated(case, ranks, per_rank).seconds


def efficiency_of(case: Case, ranks: int, per_rank: float) -> Quantity:
    """Return the samples per second of a rank relative to a rank that runs alone."""
    alone_batch = per_rank if case.global_batch is None else per_rank * ranks
    alone = step_of(case, 1, alone_batch) / alone_batch
    return alone / (step_of(case, ranks, per_rank) / per_rank)


def estimate(values: Quantity) -> Estimate:
    """Return the best guess and the interval of an array of draws."""
    drawn = np.atleast_1d(np.asarray(values, dtype=float))
    rest = drawn[1:] if drawn.size > 1 else drawn
    low, high = np.percentile(rest, [LOW, HIGH], method="closest_observation")
    return Estimate(float(drawn[0]), min(float(low), float(drawn[0])), max(float(high), float(drawn[0])))


def _drawn(link: Link, factor: Quantity, latency: Quantity) -> Link:
    return replace(link, bandwidth=link.bandwidth * factor, latency=link.latency * latency)


def _work(case: Case, ranks: int, per_rank: float | None) -> Workload:
    per_rank = case.samples_per_rank(ranks) if per_rank is None else per_rank
    return case.workload.with_samples(per_rank / case.accumulate, fixed=case.fixed)


def _simulated(case: Case, ranks: int, per_rank: float | None = None) -> SimulatedStep:
    work = _work(case, ranks, per_rank)
    return simulate_step(work, case.fabric, ranks, accumulate=case.accumulate, overhead=case.overhead)


def _trivial(case: Case, ranks: int) -> float:
    return float(np.mean(trivial_step(_work(case, ranks, None), case.fabric, ranks, accumulate=case.accumulate)))


def _break_even(case: Case, ranks: int) -> Quantity:
    """Return the bandwidth at which the ranks are as fast as one node, or within a node as one rank."""
    few = case.fabric.per_node if case.fabric.nodes(ranks) > 1 else 1
    per_rank = case.samples_per_rank(ranks)
    few_per_rank = per_rank if case.global_batch is None else case.global_batch / few
    goal = few * few_per_rank / step_of(case, few, few_per_rank)
    return _least_bandwidth(case, ranks, lambda faster: ranks * per_rank / step_of(faster, ranks, per_rank) >= goal)


def _link_for_good(case: Case, ranks: int) -> Quantity:
    per_rank = case.samples_per_rank(ranks)
    return _least_bandwidth(case, ranks, lambda faster: efficiency_of(faster, ranks, per_rank) >= GOOD)


def _least_bandwidth(case: Case, ranks: int, is_enough: Callable[[Case], Any]) -> Quantity:
    """Return the smallest sufficient bandwidth of the link: 0 if any is sufficient, infinite if none is."""
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
    """Return the fewest samples per rank with a good efficiency, each micro-batch a power of two."""
    best = np.full(np.shape(case.workload.forward), np.inf)
    per_rank = case.accumulate
    while per_rank <= LARGEST_BATCH and np.isinf(best).any():
        good = efficiency_of(case, ranks, per_rank) >= GOOD
        best = np.where(np.isinf(best) & good, per_rank, best)
        per_rank *= 2
    return best
