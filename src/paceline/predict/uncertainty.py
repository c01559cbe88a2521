"""The case to predict, and its uncertainty as random draws, all of which are simulated at once.

Every uncertain quantity is an array whose first element is the best guess.
"""

import math
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from paceline.predict.fabric import Fabric, Link, Quantity
from paceline.predict.simulate import NO_OVERHEAD, Overhead, SimulatedStep, Workload, simulate_step

NUM_DRAWS = 400
LOW, HIGH = 5, 95
"""Percentiles of the 90% interval."""
SKEW = 0.7
"""Exponent of losses that are above the best guess: some trainers lose almost nothing, none loses everything."""
DRIFT = 0.045
"""Uncertainty of a step for each doubling of the ranks away from a single measurement; less with several."""
FASTEST_STEP = 0.97
"""Shortest step of several ranks, relative to a rank alone, that a measurement can lead to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Uncertainty:
    """Uncertainty of the best guesses: standard deviations of their logarithms."""

    pace: float = 0.0
    """Of all compute times."""
    alone: float = 0.0
    """Of the speed of a device alone, to which the efficiency of many relates."""
    inter: float = 0.0
    intra: float = 0.0
    latency: float = 0.0
    loss: float = 0.0
    """Of the overhead of a trainer, of stragglers and of the slowdown of computing: a good trainer is good at all."""
    slope: float = 0.0
    """Of the loss with each doubling of the nodes."""
    overlap: float = 0.0
    """Of the odds of overlapping communication with the backward pass."""
    data: float = 0.0
    """Of the rate of the input pipeline."""
    measured: float = 0.01
    """Of measured speeds; with 0 they also hold far from where they were measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """The case to predict: a workload on ranks over a fabric."""

    workload: Workload
    """The workload of one micro-batch. A step has `accumulate` of them."""
    fabric: Fabric
    uncertainty: Uncertainty
    overhead: Overhead = NO_OVERHEAD
    alone_error: Quantity = 1.0
    """True step of a device alone, relative to the given one."""
    measured: tuple[tuple[int, float], ...] = ()
    """Ranks, and the samples per second that were measured with them."""
    correction: tuple[Quantity, Quantity] = (0.0, 0.0)
    """Seconds to add to a step so that it agrees with them: constant, and for each doubling of the ranks."""
    drift: Quantity = 0.0
    """Relative error of a step for each doubling of the ranks between it and the nearest measurement."""
    global_batch: float | None = None
    """Samples per step over all ranks (strong scaling); None for those of the workload per micro-batch (weak)."""
    fixed: float = 0.0
    """Fraction of the compute time that does not depend on the number of samples."""
    accumulate: int = 1
    total_samples: float | None = None
    """Samples to train on, for time and cost."""
    fixed_time: float = 0.0
    """Seconds of the training that do not depend on the ranks: evaluation, checkpoints."""
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


def draw_case(case: Case, number: int = NUM_DRAWS) -> Case:
    """Return the case with arrays of draws for uncertain values; the first element of each is the best guess."""
    random = np.random.default_rng(0)  # the same draws for the same case
    names = [field.name for field in fields(Uncertainty)]
    normal = np.vstack([np.zeros(len(names)), random.standard_normal((number, len(names)))]).T
    factor = {name: np.exp(getattr(case.uncertainty, name) * draws) for name, draws in zip(names, normal, strict=True)}
    factor["loss"] = np.where(factor["loss"] > 1, factor["loss"] ** SKEW, factor["loss"])
    work, fabric, extra = case.workload.scaled(factor["pace"]), case.fabric, case.overhead
    work = replace(work, spread=work.spread * factor["loss"], slowdown=np.minimum(work.slowdown * factor["loss"], 0.8))
    inter = _drawn(fabric.inter, factor["inter"], factor["latency"])
    intra = None if fabric.intra is None else _drawn(fabric.intra, factor["intra"], factor["latency"])
    overhead = replace(
        extra,
        fraction=extra.fraction * factor["loss"],
        seconds=extra.seconds * factor["loss"],
        per_doubling=extra.per_doubling * factor["slope"],
        overlap=extra.overlap * factor["overlap"] / (1 - extra.overlap + extra.overlap * factor["overlap"]),
        data_rate=extra.data_rate * factor["data"],
    )
    fabric = replace(fabric, inter=inter, intra=intra)
    drawn = replace(case, workload=work, overhead=overhead, fabric=fabric, alone_error=factor["alone"])
    if not case.measured:
        return drawn
    more = np.vstack([np.zeros(len(case.measured) + 1), random.standard_normal((number, len(case.measured) + 1))]).T
    drift = DRIFT / len(case.measured) if case.uncertainty.measured else 0.0
    return _calibrated(replace(drawn, drift=drift * more[0]), np.exp(case.uncertainty.measured * more[1:]))


def _calibrated(case: Case, errors: NDArray[np.float64]) -> Case:
    """Return the case with the correction that makes it agree with what was measured.

    One measurement gives the overhead, which grows with the ranks as an assumed one does. Several give its growth too.
    """
    missing = []
    for (ranks, rate), error in zip(case.measured, errors, strict=True):
        step = ranks * case.samples_per_rank(ranks) / rate * error
        missing.append(step - simulated(case, ranks).seconds)
    doublings = np.array([math.log2(ranks) for ranks, _ in case.measured])
    if len(set(doublings)) == 1:
        per_doubling = np.mean(missing, axis=0) / (2 + doublings[0])
        return replace(case, correction=(2 * per_doubling, per_doubling))
    design = np.stack([np.ones_like(doublings), doublings], axis=1)
    constant, per_doubling = np.linalg.lstsq(design, np.array(missing), rcond=None)[0]
    return replace(case, correction=(constant, per_doubling))


def step_of(case: Case, ranks: int, per_rank: float | None = None) -> Quantity:
    """Return the seconds of a step with the case's batch, or with `per_rank` samples on each rank."""
    return simulated(case, ranks, per_rank).seconds


def efficiency_of(case: Case, ranks: int, per_rank: float) -> Quantity:
    """Return the samples per second of a rank relative to a rank that runs alone."""
    alone_batch = per_rank if case.global_batch is None else per_rank * ranks
    alone = step_of(case, 1, alone_batch) / alone_batch
    if ranks == 1:
        return alone / alone
    alone = alone * case.alone_error
    return alone / (step_of(case, ranks, per_rank) / per_rank)


def estimate(values: Quantity) -> Estimate:
    """Return the best guess and the interval of an array of draws."""
    drawn = np.atleast_1d(np.asarray(values, dtype=float))
    rest = drawn[1:] if drawn.size > 1 else drawn
    low, high = np.percentile(rest, [LOW, HIGH], method="closest_observation")
    return Estimate(float(drawn[0]), min(float(low), float(drawn[0])), max(float(high), float(drawn[0])))


def _drawn(link: Link, factor: Quantity, latency: Quantity) -> Link:
    return replace(link, bandwidth=link.bandwidth * factor, latency=link.latency * latency)


def work_of(case: Case, ranks: int, per_rank: float | None) -> Workload:
    """Return the workload of a micro-batch."""
    per_rank = case.samples_per_rank(ranks) if per_rank is None else per_rank
    return case.workload.with_samples(per_rank / case.accumulate, fixed=case.fixed)


def simulated(case: Case, ranks: int, per_rank: float | None = None) -> SimulatedStep:
    """Return the simulated step, corrected by what was measured."""
    work = work_of(case, ranks, per_rank)
    step = simulate_step(work, case.fabric, ranks, accumulate=case.accumulate, overhead=case.overhead)
    if ranks == 1 or not case.measured:
        return step
    constant, per_doubling = case.correction
    alone = simulate_step(work, case.fabric, 1, accumulate=case.accumulate).seconds
    seconds = step.seconds + constant + per_doubling * math.log2(ranks)
    away = min(abs(math.log2(ranks / place)) for place, _ in case.measured)
    return replace(step, seconds=np.maximum(seconds * np.exp(case.drift * away), FASTEST_STEP * alone))
