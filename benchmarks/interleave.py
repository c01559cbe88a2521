"""Fair timing: variants take turns, so that drift of the machine affects all alike; the first turn is discarded."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A variant's median, and its ratio to the baseline with the range that holds the middle half of the rounds."""

    name: str
    median: float
    ratio: float
    low: float
    high: float
    cpu: "Outcome | None" = None
    """The same of the CPU time of this process, which other processes affect less; None if a variant has others."""


def take_turns(
    variants: Mapping[str, Callable[[], float | tuple[float, float] | None]], *, rounds: int
) -> list[Outcome]:
    """Run every variant once per round; each returns its seconds, or also those of CPU time, or None to be timed here.

    The first variant is the baseline. Ratios are taken within a round, in which the machine hardly changes its speed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    cpu: dict[str, list[float]] = {name: [] for name in variants}
    for round_number in range(rounds + 1):
        for name, variant in variants.items():
            start, cpu_start = time.perf_counter(), time.process_time()
            own = variant()
            if own is None:
                own = time.perf_counter() - start, time.process_time() - cpu_start
            if round_number:
                seconds[name].append(own[0] if isinstance(own, tuple) else own)
                cpu[name] += [own[1]] if isinstance(own, tuple) else []
    first = next(iter(seconds))
    return [
        replace(
            ratios_of(name, values, seconds[first]),
            cpu=ratios_of(name, cpu[name], cpu[first]) if cpu[name] and cpu[first] else None,
        )
        for name, values in seconds.items()
    ]


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
        more, middle = 100 * (outcome.ratio - 1), f"(middle half {_middle(outcome)[1:]}"
        cpu = "" if outcome.cpu is None else f"  CPU time {100 * (outcome.cpu.ratio - 1):+6.1f}% {_middle(outcome.cpu)}"
        print(f"  {outcome.name:<{width}}  {outcome.median / per:9.1f} {unit}  {more:+6.1f}%  {middle}{cpu}")


def _middle(outcome: Outcome) -> str:
    return f"({100 * (outcome.low - 1):+.1f} … {100 * (outcome.high - 1):+.1f}%)"


def show_rates(title: str, outcomes: list[Outcome]) -> None:
    """Print a table: images per second from the seconds of one image, and how many times the first one's time it is."""
    print(f"\n{title}")
    width = max(len(outcome.name) for outcome in outcomes)
    for outcome in outcomes:
        middle = f"(middle half {outcome.low:.2f} … {outcome.high:.2f})"
        print(f"  {outcome.name:<{width}}  {1 / outcome.median:9,.0f} images/s  {outcome.ratio:6.2f}×  {middle}")
