"""Predictions as text: the answer, the speed of the ranks, what efficiency needs, and the assumptions."""

import dataclasses
import math
import textwrap
from collections.abc import Sequence
from typing import Any

from paceline.core.units import count, rate, step_time, table
from paceline.predict.answer_text import amount, hours, link_rate, share, span
from paceline.predict.assumptions import Assumption
from paceline.predict.prediction import Prediction

WIDTH = 100
"""Columns of the output."""
LEGEND = """\
Batch: micro-batches (if several) × samples × ranks. In brackets: 90% interval.
Rule: efficiency by forward + max(backward, communication) + update.
Break-even: slowest link at which these ranks beat one node (in a node: one device).
For 90%: needed for 90% efficiency. Links are payload rates: TCP reaches 96% of the line at most."""


def predictions_text(
    predictions: Sequence[Prediction], basis: str, *, answer: str, assumed: Sequence[Assumption], notes: Sequence[str]
) -> str:
    """Return the answer, the predictions, and what they rest on."""
    parts = [textwrap.fill(answer, WIDTH), f"from {basis}", _performance(predictions), _requirements(predictions)]
    if assumed:
        parts.append(_assumptions(assumed, predictions[-1].ranks))
    return "\n\n".join([*parts, "\n".join([*notes, LEGEND])])


def prediction_values(prediction: Prediction) -> dict[str, Any]:
    """Return a prediction as plain values for JSON, in which an infinite value is null."""
    return _finite(dataclasses.asdict(prediction))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _performance(predictions: Sequence[Prediction]) -> str:
    head = ["ranks", "nodes", "batch", "step", "samples/s", "efficiency", "exposed", "rule"]
    return table(head, [_performance_row(prediction) for prediction in predictions])


def _performance_row(one: Prediction) -> list[str]:
    return [
        count(one.ranks),
        count(one.nodes),
        _batch(one),
        step_time(one.step.value),
        span(one.throughput, rate),
        span(one.efficiency, share),
        step_time(one.exposed.value),
        share(one.trivial_efficiency),
    ]


def _batch(one: Prediction) -> str:
    """Return "64 × 8", or with micro-batches "4 × 64 × 8"."""
    parts = f"{count(one.accumulate)} × " if one.accumulate > 1 else ""
    return f"{parts}{one.samples_per_rank / one.accumulate:,.4g} × {count(one.ranks)}"


def _requirements(predictions: Sequence[Prediction]) -> str:
    head = ["ranks", "break-even link", "link for 90%", "batch for 90%"]
    with_time = any(one.finish for one in predictions)
    with_cost = any(one.cost for one in predictions)
    head += ["time to finish", "device-hours"] if with_time else []
    head += ["cost"] if with_cost else []
    return table(head, [_requirements_row(one, with_time=with_time, with_cost=with_cost) for one in predictions])


def _requirements_row(one: Prediction, *, with_time: bool, with_cost: bool) -> list[str]:
    samples = one.best_batch.value
    cells = [count(one.ranks), link_rate(one.break_even.value), link_rate(one.link_for_good.value)]
    cells.append("none" if math.isinf(samples) else f"{samples:,.0f}")
    if with_time:
        cells += [span(one.finish, hours), "–" if one.device_hours is None else amount(one.device_hours.value)]
    return [*cells, *(["–" if one.cost is None else amount(one.cost.value)] if with_cost else [])]


def _assumptions(assumed: Sequence[Assumption], ranks: int) -> str:
    rows = [[one.text, f"{100 * one.low:.0f} … {100 * one.high:.0f}%", one.flag] for one in assumed]
    return table([f"assumed for {count(ranks)} ranks", "efficiency", "replace it by"], rows)
