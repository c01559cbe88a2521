"""The answer to the question that was asked: whether more nodes are worth it, and how many to take."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from paceline.core.errors import ConfigError
from paceline.core.units import plural
from paceline.predict.answer_text import amount, hours, span, times
from paceline.predict.fabric import Quantity
from paceline.predict.option_values import read_seconds
from paceline.predict.predict_options import ClusterOptions, QuestionOptions
from paceline.predict.prediction import Prediction
from paceline.predict.uncertainty import Case, draw_case, estimate, step_of

MOST_NODES = 512
"""Nodes up to which a number of them is searched."""
LITTLE = 0.02
"""Fraction of the time that one more node should save."""


def asked_ranks(question: QuestionOptions, cluster: ClusterOptions, case: Case) -> tuple[int, ...]:
    """Return the numbers of ranks to predict: those given, and the one that the question is about."""
    ranks = cluster.ranks
    for chosen in (_within_budget(question, case), _before_deadline(question, case)):
        ranks = ranks if chosen is None else (*ranks, chosen)
    return tuple(dict.fromkeys(sorted(ranks)))


def more_ranks(worth: int, cluster: ClusterOptions) -> int:
    """Return the ranks with this many nodes added."""
    now = math.ceil(cluster.ranks[0] / cluster.per_node)
    return (now + worth) * cluster.per_node


def answer(question: QuestionOptions, case: Case, predictions: Sequence[Prediction]) -> str:
    """Return the answer in one or two sentences."""
    if question.budget is not None or question.deadline is not None:
        return " ".join(_choices(question, case, predictions))
    first, last = predictions[0], predictions[-1]
    if first is last:
        efficiency = span(first.efficiency, lambda value: f"{value:.0%}")
        return f"{_name(first)}: {efficiency} of perfect scaling{_finish(first)}."
    return f"{_compared(case, first, last)} {_knee(case, first)}".strip()


def _compared(case: Case, first: Prediction, last: Prediction) -> str:
    """Compare the fewest ranks with the most."""
    drawn = draw_case(case)
    faster = span(estimate(rank_speed(drawn, last.ranks) / rank_speed(drawn, first.ranks)), times)
    if first.finish is None or last.finish is None:
        devices = times(last.ranks / first.ranks)
        return f"{_name(last)} train {faster} as fast as {_name(first)}, with {devices} the devices."
    costs = last.finish.value * last.ranks / (first.finish.value * first.ranks)
    return (
        f"{_name(last)} finish in {span(last.finish, hours)} instead of {hours(first.finish.value)} with "
        f"{_name(first)}, and cost {costs:.2f}× the device-hours."
    )


def _choices(question: QuestionOptions, case: Case, predictions: Sequence[Prediction]) -> Iterator[str]:
    by_ranks = {one.ranks: one for one in predictions}
    soon, cheap = _before_deadline(question, case), _within_budget(question, case)
    if soon is not None:
        one = by_ranks[soon]
        yield f"{_name(one)}: the fewest for a deadline of {question.deadline}{_finish(one)}."
    if cheap is not None and question.budget is not None:
        one = by_ranks[cheap]
        yield f"{_name(one)}: the fastest for a budget of {amount(question.budget)}{_finish(one)}."


def _within_budget(question: QuestionOptions, case: Case) -> int | None:
    """Return the number of ranks that finishes first within the budget, as long as one more node saves enough."""
    if question.budget is None:
        return None
    assert case.price is not None
    fitting, before = [], math.inf
    for ranks, time in _times(case):
        if time > (1 - LITTLE) * before:
            break
        before = time
        if time * ranks / 3600 * case.price <= question.budget:
            fitting.append((time, ranks))
    if not fitting:
        least = min(time * ranks / 3600 * case.price for ranks, time in _times(case))
        raise ConfigError(
            f"no number of nodes costs less than {amount(question.budget)}",
            hint=f"use --budget {math.ceil(least)} or more",
        )
    return min(fitting)[1]


def _before_deadline(question: QuestionOptions, case: Case) -> int | None:
    """Return the smallest number of ranks that finishes in time."""
    if question.deadline is None:
        return None
    limit = read_seconds("deadline", question.deadline)
    found = list(_times(case))
    for ranks, time in found:
        if time <= limit:
            return ranks
    fastest = min(found, key=lambda pair: pair[1])
    raise ConfigError(
        f"no number of nodes up to {MOST_NODES} finishes within {question.deadline}",
        hint=f"{fastest[0]} ranks need {hours(fastest[1])}: use a longer --deadline, a faster --link or a larger batch",
    )


def _times(case: Case) -> Iterator[tuple[int, float]]:
    """Return the time to finish by numbers of ranks: of one node, then of whole nodes."""
    assert case.total_samples is not None
    per_node = case.fabric.per_node
    inside = [2**power for power in range(per_node.bit_length()) if 2**power < per_node]
    guess = draw_case(case, 0)
    for ranks in [*inside, *(nodes * per_node for nodes in range(1, MOST_NODES + 1))]:
        if case.global_batch is not None and case.global_batch < ranks * case.accumulate:
            return
        yield ranks, case.total_samples / _first(rank_speed(guess, ranks)) + case.fixed_time


def _knee(case: Case, now: Prediction) -> str:
    """Say from which number of nodes on one more saves little."""
    guess, per_node = draw_case(case, 0), case.fabric.per_node
    most = MOST_NODES if case.global_batch is None else int(case.global_batch // (per_node * case.accumulate))
    before = None
    for nodes in range(now.nodes, min(MOST_NODES, most) + 1):
        time = 1 / _first(rank_speed(guess, nodes * per_node))
        if before is not None and time > (1 - LITTLE) * before:
            return f"Beyond {plural(nodes - 1, 'node')} each further node saves less than {LITTLE:.0%} of the time."
        before = time
    return ""


def rank_speed(case: Case, ranks: int) -> Quantity:
    """Return the samples per second of all ranks together."""
    return ranks * case.samples_per_rank(ranks) / step_of(case, ranks)


def _first(values: Quantity) -> float:
    return float(np.atleast_1d(values)[0])


def _name(one: Prediction) -> str:
    return f"{plural(one.nodes, 'node')} ({plural(one.ranks, 'rank')})" if one.nodes > 1 else plural(one.ranks, "rank")


def _finish(one: Prediction) -> str:
    if one.finish is None:
        return ""
    price = "" if one.cost is None else f" for {span(one.cost, amount)}"
    return f", done in {span(one.finish, hours)}{price}"
