"""How much faster one run is than another: a ratio with its interval, or why there is none."""

import math
from dataclasses import dataclass

from paceline.core.units import plural
from paceline.explain.time_split import TimeSplit

FEWEST_STEPS = 30
"""Steps after the first interval, from which speeds are compared."""
FEWEST_INTERVALS = 4
"""Intervals of records that they must be spread over: the differences between these are the only known noise."""
Z = 1.96


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeedRatio:
    """Samples per second of a run divided by those of another, with a 95% interval."""

    value: float
    low: float
    high: float

    @property
    def is_clear(self) -> bool:
        """Tell whether one run is faster, beyond the noise between intervals."""
        return not self.low <= 1 <= self.high

    @property
    def inverse(self) -> "SpeedRatio":
        """The speed of the first run relative to the second."""
        return SpeedRatio(value=1 / self.value, low=1 / self.high, high=1 / self.low)

    @property
    def interval(self) -> str:
        """The interval in words."""
        return f"95% interval {self.low:.2f}–{self.high:.2f}×"


def speed_ratio(first: TimeSplit, second: TimeSplit, *, batches: tuple[int, int]) -> SpeedRatio:
    """Return the speed of the second run relative to the first, both with enough steps."""
    value = _per_sample(first, batches[0]) / _per_sample(second, batches[1])
    margin = math.exp(quantile(first, second) * math.hypot(_relative_error(first), _relative_error(second)))
    return SpeedRatio(value=value, low=value / margin, high=value * margin)


def too_short(split: TimeSplit) -> str | None:
    """Return why a run is too short to compare its speed with others; None if it is long enough."""
    steps = split.steady_state.steps if split.num_intervals else 0
    if steps < FEWEST_STEPS:
        measured = plural(steps, "step") + " after the first interval"
        return f"{measured} are too few to compare speeds; {FEWEST_STEPS} are needed"
    if split.num_intervals < FEWEST_INTERVALS:
        return (
            f"{plural(split.num_intervals, 'interval')} of records are too few to compare speeds; {FEWEST_INTERVALS} "
            "are needed, as with a smaller --log-every"
        )
    return None


def quantile(first: TimeSplit, second: TimeSplit) -> float:
    """Return the factor of the error of a 95% interval: Student's, for the run with fewer intervals."""
    freedom = min(first.num_intervals, second.num_intervals) - 1
    return Z + (Z**3 + Z) / (4 * freedom) + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * freedom**2)


def _per_sample(split: TimeSplit, batch: int) -> float:
    return float(split.steady_state.step.mean()) / batch


def _relative_error(split: TimeSplit) -> float:
    return split.deviation / math.sqrt(split.num_intervals) / float(split.steady_state.step.mean())
