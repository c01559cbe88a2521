"""Predictions as two tables: the speed of the ranks, and the link and batch needed for efficiency."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from paceline.core.units import bit_rate, count, duration, rate, step_time, table
from paceline.predict.prediction import Estimate, Prediction

LEGEND = """\
In brackets: 90% interval. Rule: forward + max(backward, communication) + update.
Break-even: slowest link at which these ranks beat one node (in a node: one device). For 90%: needed for 90% efficiency.
Links are payload rates; TCP over Ethernet reaches at most 96% of the line rate."""


def predictions_text(predictions: Sequence[Prediction], basis: str) -> str:
    """Return the predictions and their source."""
    return "\n\n".join([f"from {basis}", _performance(predictions), _requirements(predictions), LEGEND])


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
        f"{one.samples_per_rank:,.4g} × {count(one.ranks)}" + _parts(one),
        _span(one.step, step_time),
        _span(one.throughput, rate),
        _span(one.efficiency, _share),
        _span(one.exposed, step_time),
        f"{step_time(one.trivial_step)}, {_share(one.trivial_efficiency)}",
    ]


def _parts(one: Prediction) -> str:
    return f" in {count(one.accumulate)} micro-batches" if one.accumulate > 1 else ""


def _requirements(predictions: Sequence[Prediction]) -> str:
    head = ["ranks", "break-even link", "link for 90%", "samples/rank for 90%"]
    with_time = any(one.finish for one in predictions)
    with_cost = any(one.cost for one in predictions)
    head += ["time to finish", "device-hours"] if with_time else []
    head += ["cost"] if with_cost else []
    return table(head, [_requirements_row(one, with_time=with_time, with_cost=with_cost) for one in predictions])


def _requirements_row(one: Prediction, *, with_time: bool, with_cost: bool) -> list[str]:
    cells = [
        count(one.ranks),
        _span(one.break_even, _link),
        _span(one.link_for_good, _link),
        _span(one.best_batch, lambda samples: "none" if math.isinf(samples) else f"{samples:,.0f}"),
    ]
    cells += [_span(one.finish, duration), _span(one.device_hours, _amount)] if with_time else []
    return [*cells, *([_span(one.cost, _amount)] if with_cost else [])]


def _span(estimate: Estimate | None, text: Callable[[float], str]) -> str:
    """Return a best guess with its interval, or alone if they are equal."""
    if estimate is None:
        return "–"
    value, low, high = text(estimate.value), text(estimate.low), text(estimate.high)
    return value if low == high == value else f"{value} ({low} … {high})"


def _share(part: float) -> str:
    return f"{100 * part:.1f}%"


def _link(bandwidth: float) -> str:
    if math.isinf(bandwidth):
        return "none"
    return "any" if bandwidth == 0 else bit_rate(bandwidth)


def _amount(value: float) -> str:
    return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"
