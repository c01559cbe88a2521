"""What efficiency needs: the slowest link and the smallest batch that are sufficient, by search."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from paceline.predict.fabric import Quantity
from paceline.predict.uncertainty import Case, efficiency_of, step_of

GOOD = 0.9
"""Efficiency from which a batch counts as large enough."""
LARGEST_BATCH = 2**20
FASTEST, SLOWEST = 1e13, 1e2
"""Range of the search for a break-even bandwidth, in bytes per second."""


def break_even(case: Case, ranks: int) -> Quantity:
    """Return the bandwidth at which the ranks are as fast as one node, or within a node as one rank."""
    few = case.fabric.per_node if case.fabric.nodes(ranks) > 1 else 1
    per_rank = case.samples_per_rank(ranks)
    few_per_rank = per_rank if case.global_batch is None else case.global_batch / few
    goal = few * few_per_rank / step_of(case, few, few_per_rank)
    return _least_bandwidth(case, ranks, lambda faster: ranks * per_rank / step_of(faster, ranks, per_rank) >= goal)


def link_for_good(case: Case, ranks: int) -> Quantity:
    """Return the bandwidth at which the efficiency is good."""
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


def best_batch(case: Case, ranks: int) -> Quantity:
    """Return the fewest samples per rank with a good efficiency, each micro-batch a power of two."""
    best = np.full(np.shape(case.workload.forward), np.inf)
    per_rank = case.accumulate
    while per_rank <= LARGEST_BATCH and np.isinf(best).any():
        good = efficiency_of(case, ranks, per_rank) >= GOOD
        best = np.where(np.isinf(best) & good, per_rank, best)
        per_rank *= 2
    return best
