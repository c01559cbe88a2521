"""Fair timing: variants take turns, so that drift of the machine affects all alike; the first turn is discarded."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A variant's median, and its ratio to the baseline with the range that holds the middle half of the rounds."""

    name: str
    median: float
    ratio: float
    low: float
    high: float


def take_turns(variants: Mapping[str, Callable[[], float | None]], *, rounds: int) -> list[Outcome]:
    """Run every variant once per round; each returns its seconds, or None to be timed here.

    The first variant is the baseline. Ratios are taken within a round, in which the machine hardly changes its speed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for round_number in range(rounds + 1):
        for name, variant in variants.items():
            start = time.perf_counter()
            own = variant()
            if round_number:
                seconds[name].append(time.perf_counter() - start if own is None else own)
    baseline = next(iter(seconds.values()))
    return [ratios_of(name, values, baseline) for name, values in seconds.items()]


def ratios_of(name: str, values: Sequence[float], baseline: Sequence[float]) -> Outcome:
    """Return the median of the ratios within rounds."""
    ratios = sorted(value / base for value, base in zip(values, baseline, strict=True))
    quarter = len(ratios) // 4
    return Outcome(
        name=name,
        median=statistics.median(values),
        ratio=statistics.median(ratios),
        low=ratios[quarter],
        high=ratios[-1 - quarter],
    )


def show(title: str, outcomes: list[Outcome], *, per: float, unit: str) -> None:
    """Print a table: median per step, and how much more than the baseline."""
    print(f"\n{title}")
    width = max(len(outcome.name) for outcome in outcomes)
    for outcome in outcomes:
        more, low, high = (100 * (ratio - 1) for ratio in (outcome.ratio, outcome.low, outcome.high))
        middle = f"(middle half {low:+.1f} … {high:+.1f}%)"
        print(f"  {outcome.name:<{width}}  {outcome.median / per:9.1f} {unit}  {more:+6.1f}%  {middle}")


def show_rates(title: str, outcomes: list[Outcome]) -> None:
    """Print a table: images per second from the seconds of one image, and how many times the first one's time it is."""
    print(f"\n{title}")
    width = max(len(outcome.name) for outcome in outcomes)
    for outcome in outcomes:
        middle = f"(middle half {outcome.low:.2f} … {outcome.high:.2f})"
        print(f"  {outcome.name:<{width}}  {1 / outcome.median:9,.0f} images/s  {outcome.ratio:6.2f}×  {middle}")
