"""Suggestions for a step that waits for gradients; the gain of each is simulated."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from paceline.core.config import Config
from paceline.core.units import bit_rate
from paceline.explain.time_split import PhaseTotals, TimeSplit
from paceline.predict.fabric import Fabric, Link
from paceline.predict.profiled import profile_link, profile_workload
from paceline.predict.simulate import Workload, simulate_step
from paceline.records.profile import Profile

TIMES_MORE = 4
"""Factor of a larger batch."""
FASTER_LINK = 10
BUCKETS_MB = (1, 5, 10, 25, 50, 100)
LEAST_GAIN = 1.03
COMPRESSED = {"none": 1.0, "fp16": 0.5, "bf16": 0.5}
"""Bytes sent per byte of gradients."""
TRUSTED = (0.5, 2.0)
"""A profile is used if the exposed communication it predicts is within these factors of the measured one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggestion:
    """A change to try, and the speed-up of the run."""

    action: str
    """The flag to add, or what to do."""
    gain: float
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StepScenario:
    """A step with its workload and fabric, ready to be simulated with changes."""

    work: Workload
    fabric: Fabric
    ranks: int
    from_profile: bool
    accumulate: int = 1
    """Micro-batches per step; the workload is that of one."""

    @property
    def seconds(self) -> float:
        """Seconds of a step without changes."""
        return self.with_work()

    @property
    def wire_seconds(self) -> float:
        """Seconds that the gradients of a step need on the link."""
        return float(self.fabric.cost(self.work.gradient_bytes, self.ranks).seconds)

    @property
    def exposed(self) -> float:
        """Seconds of exposed communication in a step."""
        return float(simulate_step(self.work, self.fabric, self.ranks, accumulate=self.accumulate).exposed)

    def with_work(self, work: Workload | None = None, *, more: int = 1, speed: float = 1.0) -> float:
        """Return the seconds of a step with another workload, `more` times the micro-batches, or another link speed."""
        link = replace(self.fabric.inter, bandwidth=self.fabric.inter.bandwidth * speed)
        fabric = replace(self.fabric, inter=link)
        parts = more * self.accumulate
        step = simulate_step(self.work if work is None else work, fabric, self.ranks, accumulate=parts)
        return float(step.seconds)


def step_scenario(split: TimeSplit, config: Config, profile: Profile | None) -> StepScenario:
    """Return the step of a run: from its profile if that agrees with the run, else from its phases alone.

    Phases do not show how much communication is hidden behind the backward pass. It is taken as none, so the gain of a
    faster link or fewer bytes is a lower bound.
    """
    waited = float(split.steady_state.per_step("communication").mean())
    plain = _from_phases(split, config, waited)
    if profile is None or profile.world_size != split.world_size or not profile.bandwidth:
        return plain
    work = profile_workload(profile).compressed(COMPRESSED[profile.compress])
    measured = StepScenario(
        work=work,
        fabric=Fabric(inter=profile_link(profile)),
        ranks=split.world_size,
        from_profile=True,
        accumulate=profile.accumulate,
    )
    return measured if TRUSTED[0] * waited <= measured.exposed <= TRUSTED[1] * waited else plain


def _from_phases(split: TimeSplit, config: Config, waited: float) -> StepScenario:
    steady_state, ranks = split.steady_state, split.world_size
    sent = split.facts.gradient_bytes * COMPRESSED[config.compress]
    work = Workload(
        forward=_mean(steady_state, "forward"),
        backward=_mean(steady_state, "backward"),
        update=_mean(steady_state, "update"),
        other=_mean(steady_state, "data") + _mean(steady_state, "copy") + _mean(steady_state, "straggler"),
        ready=(1.0,),
        sizes=(sent,),
        samples_per_rank=split.facts.global_batch / ranks,
    )
    bandwidth = 2 * (ranks - 1) / ranks * sent / max(waited, 1e-9)
    return StepScenario(work=work, fabric=Fabric(inter=Link(bandwidth=bandwidth)), ranks=ranks, from_profile=False)


def _mean(totals: PhaseTotals, phase: str) -> float:
    return float(totals.per_step(phase).mean())


def suggest_changes(scenario: StepScenario, config: Config) -> tuple[Suggestion, ...]:
    """Return changes that reduce waiting for gradients, the best first; gains are per sample."""
    worth = [suggestion for suggestion in _candidates(scenario, config) if suggestion.gain >= LEAST_GAIN]
    return tuple(sorted(worth, key=lambda suggestion: -suggestion.gain))


def _candidates(scenario: StepScenario, config: Config) -> Iterator[Suggestion]:
    before, more = scenario.seconds, TIMES_MORE
    batch, parts = more * config.global_batch, more * config.micro_batches
    yield Suggestion(
        action=f"--global-batch {batch} --accumulate {parts}",
        gain=more * before / scenario.with_work(more=more),
        why=f"{more}× the samples per all-reduce, in the same memory",
    )
    larger = scenario.work.with_samples(more * scenario.work.samples_per_rank)
    yield Suggestion(
        action=f"--global-batch {batch}",
        gain=more * before / scenario.with_work(larger),
        why=f"{more}× the samples per all-reduce, if they fit into memory",
    )
    if config.compress == "none" and config.loop is None:
        half = scenario.work.compressed(COMPRESSED["fp16"])
        yield Suggestion(action="--compress fp16", gain=before / scenario.with_work(half), why="half the bytes")
    faster = bit_rate(float(np.mean(scenario.fabric.inter.bandwidth)) * FASTER_LINK)
    yield Suggestion(
        action=f"a link of {faster}",
        gain=before / scenario.with_work(speed=FASTER_LINK),
        why=f"{FASTER_LINK}× the bandwidth of this one",
    )
    if scenario.from_profile:
        seconds = {size: scenario.with_work(_with_buckets(scenario.work, size * 1e6)) for size in BUCKETS_MB}
        best = min(seconds, key=lambda size: seconds[size])
        yield Suggestion(
            action=f"--bucket-mb {best}",
            gain=before / seconds[best],
            why="gradients are sent earlier, or in fewer messages",
        )


def _with_buckets(work: Workload, size: float) -> Workload:
    """Return the workload with buckets of another size; gradients become ready evenly between the measured times."""
    total = work.gradient_bytes
    known = np.cumsum((0.0, *work.sizes))
    moments = np.array((0.0, *work.ready))
    ends = np.append(np.arange(size, total, size), total)
    ready = tuple(np.interp(ends, known, moments).tolist())
    return replace(work, ready=ready, sizes=tuple(np.diff(ends, prepend=0.0).tolist()))
