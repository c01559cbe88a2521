"""Predictions as two tables: what the ranks would do, and what it would take for them to be worth it."""

import math
from collections.abc import Callable, Sequence

from paceline.analysis.predict import Estimate, Prediction
from paceline.core.units import bit_rate, count, duration, rate
from paceline.report.tables import table

LEGEND = """\
In brackets: where the truth should lie nine times of ten. Rule: forward + max(backward, communication) + update.
Break-even: link from which these ranks beat one node (one device, inside a node). For 90%: what takes efficiency there.
Links are what the payload gets; TCP over Ethernet gets 96% of the line at best."""


def predictions_text(predictions: Sequence[Prediction], basis: str) -> str:
    """Return what was predicted, and from what."""
    return "\n\n".join([f"from {basis}", _doing(predictions), _taking(predictions), LEGEND])


def _doing(predictions: Sequence[Prediction]) -> str:
    head = ["ranks", "nodes", "batch", "step", "images/s", "efficiency", "exposed", "rule"]
    return table(head, [_row_of_doing(prediction) for prediction in predictions])


def _row_of_doing(one: Prediction) -> list[str]:
    return [
        count(one.ranks),
        count(one.nodes),
        f"{one.images_per_rank:,.4g} × {count(one.ranks)}" + _parts(one),
        _span(one.step, _time),
        _span(one.throughput, rate),
        _span(one.efficiency, _share),
        _span(one.exposed, _time),
        f"{_time(one.trivial_step)}, {_share(one.trivial_efficiency)}",
    ]


def _parts(one: Prediction) -> str:
    return f" in {count(one.accumulate)} micro-batches" if one.accumulate > 1 else ""


def _taking(predictions: Sequence[Prediction]) -> str:
    head = ["ranks", "break-even link", "link for 90%", "images/rank for 90%"]
    with_time = any(one.finish for one in predictions)
    with_cost = any(one.cost for one in predictions)
    head += ["time to finish", "device-hours"] if with_time else []
    head += ["cost"] if with_cost else []
    return table(head, [_row_of_taking(one, with_time=with_time, with_cost=with_cost) for one in predictions])


def _row_of_taking(one: Prediction, *, with_time: bool, with_cost: bool) -> list[str]:
    cells = [
        count(one.ranks),
        _span(one.break_even, _link),
        _span(one.link_for_good, _link),
        _span(one.best_batch, lambda images: "none" if math.isinf(images) else f"{images:,.0f}"),
    ]
    cells += [_span(one.finish, duration), _span(one.device_hours, _amount)] if with_time else []
    return [*cells, *([_span(one.cost, _amount)] if with_cost else [])]


def _span(estimate: Estimate | None, text: Callable[[float], str]) -> str:
    """Return a best guess with its interval, or alone where the interval adds nothing."""
    if estimate is None:
        return "–"
    value, low, high = text(estimate.value), text(estimate.low), text(estimate.high)
    return value if low == high == value else f"{value} ({low} … {high})"


def _time(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def _share(part: float) -> str:
    return f"{100 * part:.1f}%"


def _link(bandwidth: float) -> str:
    if math.isinf(bandwidth):
        return "none"
    return "any" if bandwidth == 0 else bit_rate(bandwidth)


def _amount(value: float) -> str:
    return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"
