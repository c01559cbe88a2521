"""Prediction for a number of ranks: step time, efficiency, break-even link, best batch and cost, with intervals."""

from dataclasses import dataclass

import numpy as np

from paceline.predict.requirements import best_batch, break_even, link_for_good
from paceline.predict.simulate import trivial_step
from paceline.predict.uncertainty import Case, Estimate, draw_case, efficiency_of, estimate, simulated, step_of, work_of


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
    exposed = simulated(drawn, ranks).exposed
    efficiency = efficiency_of(drawn, ranks, per_rank)
    throughput = ranks * per_rank / step
    finish = None if case.total_samples is None else case.total_samples / throughput + case.fixed_time
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
        break_even=estimate(break_even(drawn, ranks)),
        link_for_good=estimate(link_for_good(drawn, ranks)),
        best_batch=estimate(best_batch(drawn, ranks)),
        finish=None if finish is None else estimate(finish),
        device_hours=None if hours is None else estimate(hours),
        cost=None if hours is None or case.price is None else estimate(hours * case.price),
        trivial_step=trivial,
        trivial_efficiency=alone * (1 if case.global_batch is None else 1 / ranks) / trivial,
    )


def _trivial(case: Case, ranks: int) -> float:
    return float(np.mean(trivial_step(work_of(case, ranks, None), case.fabric, ranks, accumulate=case.accumulate)))
