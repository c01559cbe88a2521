"""Statistics of speed: medians with intervals, speed-up, efficiency and cost; a winner only if it is significant."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from paceline.bench.bench_folder import Bench, Measurement, Scaling, Variant
from paceline.core.errors import flag

CONFIDENCE = 0.95
FEWEST_REPEATS = 4
"""With three repeats each, one of two equal variants would win in 1 of 10 benchmarks; with four, in 1 of 35."""
LOSS_MARGIN = 0.15
"""Largest relative excess of a training loss over the best one at the same batch; a variant above it cannot win. Local
batch norm costs up to half of it in the first steps."""
WORK = ("data", "image_size", "augment", "valid_split", "model", "precision", "optimizer")
"""Settings that determine the work per sample; `global_batch` is compared separately."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MedianInterval:
    """A median with its confidence interval, for any distribution."""

    median: float
    low: float
    high: float
    confidence: float

    def overlaps(self, other: "MedianInterval") -> bool:
        """Return whether the two intervals overlap."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True, kw_only=True, slots=True)
class VariantResult:
    """The speed, cost and loss of one variant."""

    variant: Variant
    step_s: MedianInterval
    samples_per_s: MedianInterval
    speedup: MedianInterval
    """Samples per second relative to the reference, compared within rounds."""
    efficiency: MedianInterval
    """Speed-up divided by the factor of devices."""
    device_seconds: float | None
    """Cost of an epoch: devices × seconds."""
    train_loss: float
    test_top1: float | None
    wrong: str | None = None
    """Why it cannot win."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingGroup:
    """Variants that can be compared: the same global batch, or the same batch per device."""

    scaling: Scaling
    results: list[VariantResult]
    winner: str | None
    verdict: str


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> MedianInterval:
    """Return the median and its interval between order statistics; with few values, between the extremes."""
    ordered, n = sorted(values), len(values)
    rank = _rank(n, confidence)
    return MedianInterval(
        median=statistics.median(ordered), low=ordered[rank - 1], high=ordered[n - rank], confidence=_coverage(n, rank)
    )


def _rank(n: int, confidence: float = CONFIDENCE) -> int:
    """Return the index, from either end, of the order statistic of n values that bounds the interval."""
    return max((rank for rank in range(1, n // 2 + 1) if _coverage(n, rank) >= confidence), default=1)


def _coverage(n: int, rank: int) -> float:
    """Return the probability that the true median lies between the rank-th smallest and the rank-th largest of n."""
    return 1 - 2 * sum(math.comb(n, k) for k in range(rank)) / 2**n if n > 1 else 0.0


def compare_variants(bench: Bench, scaling: Scaling) -> ScalingGroup | None:
    """Compare the variants of one kind of scaling; None if nothing was measured."""
    chosen = [index for index, variant in enumerate(bench.variants) if variant.scaling in {None, scaling}]
    measurements = {index: [s for s in bench.measurements if s.variant == index] for index in chosen}
    measured = [index for index in chosen if measurements[index]]
    if not measured or (scaling == "weak" and all(bench.variants[index].scaling is None for index in measured)):
        return None
    reference = min(measured, key=lambda index: (bench.variants[index].devices, index))
    results = _with_wrong_losses([_result(bench, index, measurements, reference) for index in measured])
    winner, verdict = _judge(results, bench.variants[reference])
    return ScalingGroup(scaling=scaling, results=results, winner=winner, verdict=verdict)


def compare_all(bench: Bench) -> list[ScalingGroup]:
    """Return the results of every kind of scaling with measurements."""
    return [group for scaling in get_args(Scaling) if (group := compare_variants(bench, scaling)) is not None]


def _result(bench: Bench, index: int, measurements: Mapping[int, list[Measurement]], reference: int) -> VariantResult:
    variant, own, base = bench.variants[index], measurements[index], measurements[reference]
    before = {measurement.round: measurement.samples_per_s for measurement in base}
    ratios = [s.samples_per_s / before[s.round] for s in own if s.round in before] or [math.nan]
    per_device = bench.variants[reference].devices / variant.devices
    speed = median_interval([measurement.samples_per_s for measurement in own])
    accuracy = [measurement.test_top1 for measurement in own if measurement.test_top1 is not None]
    return VariantResult(
        variant=variant,
        step_s=median_interval([measurement.step_s for measurement in own]),
        samples_per_s=speed,
        speedup=median_interval(ratios),
        efficiency=median_interval([ratio * per_device for ratio in ratios]),
        device_seconds=variant.devices * bench.train_samples / speed.median if bench.train_samples else None,
        train_loss=statistics.median(measurement.train_loss for measurement in own),
        test_top1=statistics.median(accuracy) if accuracy else None,
    )


def _with_wrong_losses(results: Sequence[VariantResult]) -> list[VariantResult]:
    """Mark variants with a higher loss than another on the same batches: they cannot win."""
    checked = []
    for result in results:
        alike = [s.train_loss for s in results if s.variant.global_batch == result.variant.global_batch]
        best = min((loss for loss in alike if math.isfinite(loss)), default=math.inf)
        is_right = math.isfinite(result.train_loss) and result.train_loss <= best * (1 + LOSS_MARGIN)
        why = None if is_right else f"its training loss is {result.train_loss:.3g} where another has {best:.3g}"
        checked.append(replace(result, wrong=why))
    return checked


def _judge(results: Sequence[VariantResult], reference: Variant) -> tuple[str | None, str]:
    """Return the winner, if there is one, and a sentence about it."""
    sound = sorted((s for s in results if s.wrong is None), key=lambda s: -s.samples_per_s.median)
    if len(results) < 2:
        return None, "a single variant cannot be compared"
    if len(sound) < 2:
        return None, "no winner: fewer than two variants have the right training loss"
    if sound[0].samples_per_s.confidence < _coverage(FEWEST_REPEATS, 1):
        return None, f"no winner: fewer than {FEWEST_REPEATS} repeats cannot tell speed from noise"
    best, rest = sound[0], sound[1:]
    rivals = [s.variant.name for s in rest if s.samples_per_s.overlaps(best.samples_per_s)]
    if rivals:
        names = " and ".join([", ".join([best.variant.name, *rivals[:-1]]), rivals[-1]])
        return None, f"no winner: the intervals of {names} overlap"
    return best.variant.name, _winner_text(best, rest[0], reference)


def _winner_text(best: VariantResult, second: VariantResult, reference: Variant) -> str:
    if best.variant == reference:
        ahead = best.samples_per_s.median / second.samples_per_s.median
        return f"{reference.name} is fastest, {ahead:.2f}× of {second.variant.name}: more devices do not help here"
    interval = f"{best.speedup.low:.2f} … {best.speedup.high:.2f}"
    return (
        f"{best.variant.name} is fastest: {best.speedup.median:.2f}× ({interval}) of {reference.name} "
        f"on {best.variant.devices}× the devices, {100 * best.efficiency.median:.0f}% efficient"
    )


def smallest_visible(bench: Bench, *, trials: int = 2000) -> float | None:
    """Return the relative difference in speed that would be detected with a probability of 80%."""
    logs = [
        [math.log(s.samples_per_s) for s in bench.measurements if s.variant == index]
        for index in range(len(bench.variants))
    ]
    logs = [values for values in logs if len(values) >= FEWEST_REPEATS]
    if not logs:
        return None
    noise = math.sqrt(statistics.fmean(statistics.variance(values) for values in logs))
    return math.expm1(visible_gap(noise, min(map(len, logs)), trials=trials))


def visible_gap(noise: float, repeats: int, *, trials: int = 2000) -> float:
    """Return the gap between two variants with normal noise that leaves their intervals apart in 80% of trials."""
    draws = np.random.default_rng(0).normal(scale=noise, size=(2, trials, repeats))
    draws.sort(axis=2)
    rank = _rank(repeats)
    return float(np.quantile(draws[0, :, repeats - rank] - draws[1, :, rank - 1], 0.8))


def work_differences(first: Mapping[str, Any], second: Mapping[str, Any], *, batch: bool = True) -> list[str]:
    """Return why the speeds of two runs cannot be compared: every difference in their work, in words.

    The arguments are settings as in config.toml; with `batch` the global batch must be equal too.
    """
    names = [*WORK, *(["global_batch"] if batch else [])]
    return [
        f"{flag(name)} is {first.get(name)} in one and {second.get(name)} in the other"
        for name in names
        if first.get(name) != second.get(name)
    ]
