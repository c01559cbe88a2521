"""The data for a run's report, read from its folder: ranks, learning curves, phases, predictions."""

import json
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.core.score_text import main_score, score_value, spread_text
from paceline.core.units import count, plural, rate
from paceline.explain.bottlenecks import find_bottlenecks
from paceline.explain.run_numbers import RunBottleneck
from paceline.explain.speed_ratio import speed_ratio, too_short
from paceline.explain.time_split import TimeSplit, split_time
from paceline.predict.cases import run_case
from paceline.predict.predict_options import BatchOptions, ClusterOptions
from paceline.predict.prediction import predict
from paceline.predict.uncertainty import Case, step_of
from paceline.records.compare_runs import compare_runs
from paceline.records.folder import RunFolder
from paceline.records.phases import PHASES, STEP_PHASES, WAIT_PHASES, read_phases
from paceline.records.profile import Profile, read_profile
from paceline.records.reader import RunSummary, read_environments, summarise
from paceline.records.thinned import ThinnedRecords

DEVICES_OF_DP = re.compile(r"^dp \(.*\b(\d+) devices?")
"""The number of devices in the mode, for older run folders without a separate entry."""
SAME = 0.05
"""Relative difference in speed below which two runs count as equally fast."""
LARGEST_WORLD = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class RunData:
    """The data of a run's report."""

    label: str
    summary: RunSummary
    records: list[dict[str, Any]]
    """At most a few thousand of each kind, evenly spaced."""
    split: TimeSplit | None
    profile: Profile | None
    environments: list[dict[str, Any]]
    audit: dict[str, Any] | None = None
    """What `paceline audit --run` found in the script of an observed run."""

    @property
    def num_ranks(self) -> int:
        """Ranks of its last start."""
        if self.split is not None:
            return self.split.world_size
        return self.environments[-1].get("world_size", 1) if self.environments else 1

    @property
    def num_devices(self) -> int:
        """Devices of its last start: one per rank, or with dp those of its only rank."""
        if self.split is not None and self.split.facts.num_devices is not None:
            return self.split.facts.num_devices
        environment = self.environments[-1] if self.environments else {}
        in_words = DEVICES_OF_DP.search(environment.get("mode", ""))
        return environment.get("num_devices") or (int(in_words[1]) if in_words else self.num_ranks)

    @property
    def num_nodes(self) -> int:
        """Hosts of its last start."""
        return len(set(self.split.facts.hosts)) if self.split is not None else 1

    @property
    def sample_seconds(self) -> float | None:
        """Seconds per sample, over all ranks; None before the first step."""
        if self.split is None:
            return None
        return float(self.split.steady_state.step.mean()) / self.summary.config.global_batch

    @property
    def bottlenecks(self) -> tuple[RunBottleneck, ...]:
        """Its bottlenecks, as in `paceline explain`."""
        return () if self.split is None else find_bottlenecks(self.split, self.summary.config, self.profile)

    @property
    def where(self) -> str:
        """Ranks and nodes, or the devices of a lone rank, in words."""
        if self.num_devices > self.num_ranks:
            return f"{plural(self.num_devices, 'device')} of one process"
        ranks = plural(self.num_ranks, "rank")
        return ranks if self.num_nodes == 1 else f"{ranks} on {plural(self.num_nodes, 'node')}"


def read_run_data(folder: RunFolder, label: str) -> RunData:
    """Read a run folder, in memory that does not grow with its number of records."""
    records = ThinnedRecords()
    return RunData(
        label=label,
        summary=summarise(folder, records.add),
        records=records.kept(),
        split=split_time(read_phases(folder)),
        profile=read_profile(folder) if folder.profile.is_file() else None,
        environments=read_environments(folder),
        audit=json.loads(folder.audit.read_text(encoding="utf-8")) if folder.audit.is_file() else None,
    )


def run_sentence(run: RunData) -> str:
    """Return a sentence with the accuracy and the speed of a run."""
    summary = run.summary
    score = summary.test or summary.best
    reached = ""
    if score:
        some = f"{count(score['samples'])} of " if score["samples"] < score["split_samples"] else ""
        name, samples = main_score(score), f"{some}the {'test' if summary.test else 'held-out'} samples"
        reached = f"{name} {score_value(name, score[name])} on {samples}"
        if name == "top1":
            reached = f"{100 * score['top1']:.1f}% of {samples} right"
    speed = "" if summary.samples_per_s is None else f"{rate(summary.samples_per_s)} samples/s on {run.where}"
    parts = [part for part in (reached, speed) if part]
    return ", ".join(parts) if parts else f"nothing measured yet: the run is {summary.state.lower()}"


def seeds_sentence(runs: Sequence[RunData]) -> str | None:
    """Return a sentence with mean and deviation, if the runs differ by their seeds only."""
    scores = compare_runs(*(run.summary for run in runs)).scores
    tested = [one for one in scores if one.name.startswith("test ")] or list(scores)
    if not tested:
        return None
    one = tested[0]
    return f"{one.name} {spread_text(one.name, one.mean, one.deviation)}: mean ± deviation of {len(runs)} seeds"


def contrast_sentence(first: RunData, second: RunData) -> str | None:
    """Return a sentence that compares the speed of two runs, with the phase that explains the difference."""
    if first.split is None or second.split is None:
        return None
    for label, split in ((first.label, first.split), (second.label, second.split)):
        if (reason := too_short(split)) is not None:
            return f"{label}: {reason}"
    batches = first.summary.config.global_batch, second.summary.config.global_batch
    ratio, devices = speed_ratio(first.split, second.split, batches=batches), second.num_devices / first.num_devices
    largest = max(ratio.high, 1 / ratio.low)
    if largest < 1 + SAME:
        return f"{second.label} is as fast as {first.label}, within {100 * (largest - 1):.0f}%"
    if not ratio.is_clear:
        return f"no difference in speed between {first.label} and {second.label} is certain: {ratio.interval}"
    if ratio.value > 1 and devices > 1:
        return (
            f"{second.label}: {ratio.value:.2f}× as fast as {first.label} on {devices:g}× the devices "
            f"({ratio.interval}), {100 * ratio.value / devices:.0f}% efficient; "
            f"{_largest_phase(second.split, WAIT_PHASES)}"
        )
    slow, fast = (second, first) if ratio.value < 1 else (first, second)
    longer = ratio.inverse if ratio.value < 1 else ratio
    factor = f"{longer.value:.1f}×" if longer.value >= 1.5 else f"{100 * (longer.value - 1):.0f}%"
    return f"{slow.label}: {factor} slower per sample than {fast.label} ({longer.interval}); {_slowdown(slow, fast)}"


def _largest_phase(split: TimeSplit, phases: Iterable[str]) -> str:
    """Return the longest phase in a sentence."""
    phase = max(phases, key=lambda phase: float(split.steady_state.per_step(phase).mean()))
    return _of_step(split, phase)


def _of_step(split: TimeSplit, phase: str) -> str:
    seconds = float(split.steady_state.per_step(phase).mean())
    return f"{PHASES[phase].text} is {1000 * seconds:.0f} of {1000 * split.steady_state.step.mean():.0f} ms per step"


def _slowdown(slow: RunData, fast: RunData) -> str:
    """Return the phase that explains most of the slowdown, and its fraction."""
    assert slow.split is not None
    assert fast.split is not None
    gains = {
        phase: float(slow.split.steady_state.per_step(phase).mean()) / slow.summary.config.global_batch
        - float(fast.split.steady_state.per_step(phase).mean()) / fast.summary.config.global_batch
        for phase in STEP_PHASES
    }
    phase = max(gains, key=lambda phase: gains[phase])
    share = gains[phase] / sum(value for value in gains.values() if value > 0)
    return f"{_of_step(slow.split, phase)} ({100 * share:.0f}% of the slowdown)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """The prediction for several numbers of devices under one condition, relative to one device."""

    label: str
    efficiency: Mapping[int, tuple[float, float, float]]
    """By number of devices: value, low, high."""
    measured: Mapping[int, float] = field(default_factory=dict)
    """Measured efficiency by number of devices."""

    def speedup(self) -> dict[int, tuple[float, float, float]]:
        """Return the speed-up over one device."""
        return {devices: (devices * a, devices * b, devices * c) for devices, (a, b, c) in self.efficiency.items()}


def run_forecasts(run: RunData) -> list[Forecast]:
    """Return strong and weak scaling from the profile of a run, over its measured link; none without a link."""
    profile = run.profile
    if profile is None or profile.world_size == 1 or not profile.buckets:
        return []
    largest = max(2, min(LARGEST_WORLD, profile.global_batch))
    counts = [2**power for power in range(largest.bit_length()) if 2**power <= largest]
    strong = BatchOptions(global_batch=profile.global_batch)
    return [forecast(run, "strong", counts, strong), forecast(run, "weak", counts, BatchOptions())]


def forecast(run: RunData, label: str, counts: Sequence[int], batch: BatchOptions) -> Forecast:
    """Return the predictions for numbers of ranks with a batch, from the profile of a run."""
    case, _ = run_case(run.summary.folder, ClusterOptions(ranks=tuple(counts)), batch)
    found = {ranks: predict(case, ranks).efficiency for ranks in counts}
    return Forecast(
        label=label,
        efficiency={ranks: (one.value, one.low, one.high) for ranks, one in found.items()},
        measured={} if run.profile is None else _measured_efficiency(case, run.profile),
    )


def _measured_efficiency(case: Case, profile: Profile) -> dict[int, float]:
    """Return the efficiency of the real steps of a profile, relative to its steps without communication on one rank."""
    ranks = profile.world_size
    real = statistics.fmean(statistics.median(steps.step) for steps in profile.real)
    alone_batch = profile.samples_per_rank * (1 if case.global_batch is None else ranks)
    alone = float(step_of(case, 1, alone_batch)) / alone_batch
    return {ranks: alone / (real / profile.samples_per_rank)}
