"""Speed compared fairly: medians with intervals, speed-up, efficiency and cost, and a winner only where one is."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paceline.core.config import flag
from paceline.records.bench import Bench, Contender, Sample, Scaling

CONFIDENCE = 0.95
FEWEST_REPEATS = 4
"""With three repeats each, one of two equal contenders would win one time in ten; with four, one in 35."""
LOSS_MARGIN = 0.15
"""How much higher than the best at the same batch a training loss may be before speed no longer counts; batch norm over
each rank's images alone costs up to half of it in the first steps."""
WORK = ("data", "image_size", "augment", "valid_split", "model", "precision", "optimizer")
"""Settings that decide how much is computed for an image; `global_batch` is looked at apart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A median, and the interval that holds the true one with the given confidence, whatever the distribution."""

    median: float
    low: float
    high: float
    confidence: float

    def overlaps(self, other: "Estimate") -> bool:
        """Tell whether the two could be the same."""
        return self.low <= other.high and other.low <= self.high


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """How one contender did."""

    contender: Contender
    step_s: Estimate
    images_per_s: Estimate
    speedup: Estimate
    """Images per second relative to the reference, compared within rounds."""
    efficiency: Estimate
    """Speed-up relative to the devices it took."""
    device_seconds: float | None
    """What an epoch costs: devices × seconds."""
    train_loss: float
    test_top1: float | None
    wrong: str | None = None
    """Why its speed does not count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Contenders that may be compared: the same global batch, or the same batch per device."""

    scaling: Scaling
    standings: list[Standing]
    winner: str | None
    verdict: str


def estimate(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Return the median and its interval between order statistics; with few values, between the extremes."""
    ordered, n = sorted(values), len(values)
    rank = _rank(n, confidence)
    return Estimate(
        median=statistics.median(ordered), low=ordered[rank - 1], high=ordered[n - rank], confidence=_coverage(n, rank)
    )


def _rank(n: int, confidence: float = CONFIDENCE) -> int:
    """Return which of n ordered values, counted from either end, bounds the interval."""
    return max((rank for rank in range(1, n // 2 + 1) if _coverage(n, rank) >= confidence), default=1)


def _coverage(n: int, rank: int) -> float:
    """Return the chance that the true median lies between the rank-th smallest and the rank-th largest of n."""
    return 1 - 2 * sum(math.comb(n, k) for k in range(rank)) / 2**n if n > 1 else 0.0


def compare(bench: Bench, scaling: Scaling) -> Group | None:
    """Return how the contenders of one kind of scaling did; None where nothing was measured."""
    chosen = [index for index, contender in enumerate(bench.contenders) if contender.scaling in {None, scaling}]
    samples = {index: [s for s in bench.samples if s.contender == index] for index in chosen}
    measured = [index for index in chosen if samples[index]]
    if not measured or (scaling == "weak" and all(bench.contenders[index].scaling is None for index in measured)):
        return None
    reference = min(measured, key=lambda index: (bench.contenders[index].devices, index))
    standings = _with_faults([_standing(bench, index, samples, reference) for index in measured])
    winner, verdict = _judge(standings, bench.contenders[reference])
    return Group(scaling=scaling, standings=standings, winner=winner, verdict=verdict)


def _standing(bench: Bench, index: int, samples: Mapping[int, list[Sample]], reference: int) -> Standing:
    contender, own, base = bench.contenders[index], samples[index], samples[reference]
    before = {sample.round: sample.images_per_s for sample in base}
    ratios = [s.images_per_s / before[s.round] for s in own if s.round in before] or [math.nan]
    per_device = bench.contenders[reference].devices / contender.devices
    speed = estimate([sample.images_per_s for sample in own])
    accuracy = [sample.test_top1 for sample in own if sample.test_top1 is not None]
    return Standing(
        contender=contender,
        step_s=estimate([sample.step_s for sample in own]),
        images_per_s=speed,
        speedup=estimate(ratios),
        efficiency=estimate([ratio * per_device for ratio in ratios]),
        device_seconds=contender.devices * bench.train_images / speed.median if bench.train_images else None,
        train_loss=statistics.median(sample.train_loss for sample in own),
        test_top1=statistics.median(accuracy) if accuracy else None,
    )


def _with_faults(standings: Sequence[Standing]) -> list[Standing]:
    """Mark whoever learns less than another from the same batches: fast and wrong wins nothing."""
    checked = []
    for standing in standings:
        alike = [s.train_loss for s in standings if s.contender.global_batch == standing.contender.global_batch]
        best = min((loss for loss in alike if math.isfinite(loss)), default=math.inf)
        is_right = math.isfinite(standing.train_loss) and standing.train_loss <= best * (1 + LOSS_MARGIN)
        why = None if is_right else f"its training loss is {standing.train_loss:.3g} where another has {best:.3g}"
        checked.append(replace(standing, wrong=why))
    return checked


def _judge(standings: Sequence[Standing], reference: Contender) -> tuple[str | None, str]:
    """Return the winner, if there is one, and a sentence about it."""
    sound = sorted((s for s in standings if s.wrong is None), key=lambda s: -s.images_per_s.median)
    if len(standings) < 2:
        return None, "one contender alone is no comparison"
    if len(sound) < 2:
        return None, "no winner: there are not two contenders with a right result"
    if sound[0].images_per_s.confidence < _coverage(FEWEST_REPEATS, 1):
        return None, f"no winner: fewer than {FEWEST_REPEATS} repeats cannot tell speed from luck"
    best, rest = sound[0], sound[1:]
    rivals = [s.contender.name for s in rest if s.images_per_s.overlaps(best.images_per_s)]
    if rivals:
        names = " and ".join([", ".join([best.contender.name, *rivals[:-1]]), rivals[-1]])
        return None, f"no winner: the intervals of {names} overlap"
    return best.contender.name, _praise(best, rest[0], reference)


def _praise(best: Standing, second: Standing, reference: Contender) -> str:
    if best.contender == reference:
        ahead = best.images_per_s.median / second.images_per_s.median
        return f"{reference.name} is fastest, {ahead:.2f}× of {second.contender.name}: more devices do not pay here"
    interval = f"{best.speedup.low:.2f} … {best.speedup.high:.2f}"
    return (
        f"{best.contender.name} is fastest: {best.speedup.median:.2f}× ({interval}) of {reference.name} "
        f"on {best.contender.devices}× the devices, {100 * best.efficiency.median:.0f}% efficient"
    )


def smallest_visible(bench: Bench, *, trials: int = 2000) -> float | None:
    """Return the relative difference in speed that these repeats and this noise would show four times out of five."""
    logs = [
        [math.log(s.images_per_s) for s in bench.samples if s.contender == index]
        for index in range(len(bench.contenders))
    ]
    logs = [values for values in logs if len(values) >= FEWEST_REPEATS]
    if not logs:
        return None
    noise = math.sqrt(statistics.fmean(statistics.variance(values) for values in logs))
    return math.expm1(visible_gap(noise, min(map(len, logs)), trials=trials))


def visible_gap(noise: float, repeats: int, *, trials: int = 2000) -> float:
    """Return the gap between two contenders with normal noise that leaves their intervals apart in 80% of trials."""
    draws = np.random.default_rng(0).normal(scale=noise, size=(2, trials, repeats))
    draws.sort(axis=2)
    rank = _rank(repeats)
    return float(np.quantile(draws[0, :, repeats - rank] - draws[1, :, rank - 1], 0.8))


def unlike(first: Mapping[str, Any], second: Mapping[str, Any], *, batch: bool = True) -> list[str]:
    """Return why the speed of two runs must not be compared: every difference in the work, in words.

    The arguments are settings as in config.toml; `batch` asks for the same global batch too.
    """
    names = [*WORK, *(["global_batch"] if batch else [])]
    return [
        f"{flag(name)} is {first.get(name)} in one and {second.get(name)} in the other"
        for name in names
        if first.get(name) != second.get(name)
    ]
