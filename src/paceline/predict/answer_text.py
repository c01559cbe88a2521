"""Predicted values as text, with their intervals."""

import math
from collections.abc import Callable

from paceline.core.units import bit_rate
from paceline.predict.uncertainty import Estimate


def span(estimate: Estimate | None, text: Callable[[float], str]) -> str:
    """Return a best guess with its interval, or alone if they are equal."""
    if estimate is None:
        return "–"
    value, low, high = text(estimate.value), text(estimate.low), text(estimate.high)
    return value if low == high == value else f"{value} ({low} … {high})"


def hours(seconds: float) -> str:
    """Return a long time: "3.1 h", "45 min" or "20 s"."""
    if seconds < 60:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def times(factor: float) -> str:
    """Return 2.615 as "2.6×"."""
    return f"{factor:.2g}×" if factor < 10 else f"{factor:.0f}×"


def share(part: float) -> str:
    """Return 0.9417 as "94.2%"."""
    return f"{100 * part:.1f}%"


def amount(value: float) -> str:
    """Return device-hours or a price with three digits."""
    return f"{value:,.3g}" if value < 1000 else f"{value:,.0f}"


def link_rate(bandwidth: float) -> str:
    """Return a bandwidth that is needed: "any" or "none" where none is enough."""
    if math.isinf(bandwidth):
        return "none"
    return "any" if bandwidth == 0 else bit_rate(bandwidth)
