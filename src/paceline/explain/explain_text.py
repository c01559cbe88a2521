"""The explanation of a run on one screen: the phases of the ranks, bottlenecks, suggestions; and a profile as text."""

from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np

from paceline.core.config import Config
from paceline.core.units import bit_rate, count, duration, plural, size, step_time, table
from paceline.explain.bottlenecks import FEWEST_STEPS
from paceline.explain.run_numbers import LEAST, RunBottleneck
from paceline.explain.time_split import REMAINDER, PhaseTotals, TimeSplit
from paceline.records.phases import CLOCK_STEP_PHASES, OTHER_PHASES, PHASES, STEP_PHASES
from paceline.records.profile import Profile, RankSteps

MOST_RANKS = 8
MOST_SUGGESTIONS = 4
COLUMNS = (*CLOCK_STEP_PHASES, "step")
MOST_ROWS = 8
QUIET = ("start", "straggler", "communication", "data", "evaluate", "save", "record")
"""Phases that are named if they take a tenth of the time without being a bottleneck."""


def heading(split: TimeSplit, config: Config) -> str:
    """Return model, batch and ranks of a run in a line."""
    hosts = len(set(split.facts.hosts))
    ranks = plural(split.world_size, "rank") + (f" on {hosts} hosts" if hosts > 1 else "")
    starts = f"; the last of {split.num_starts} starts, from step {split.facts.first_step}"
    return f"{config.model}, {split.facts.global_batch} samples/step, {ranks}{starts if split.num_starts > 1 else ''}"


def explanation_values(split: TimeSplit, bottlenecks: Sequence[RunBottleneck]) -> dict[str, Any]:
    """Return the explanation as plain values for JSON."""
    return {
        "seconds": {phase: values.round(6).tolist() for phase, values in split.total.phases.items()},
        "bottlenecks": [_values(bottleneck) for bottleneck in bottlenecks],
    }


def _values(bottleneck: RunBottleneck) -> dict[str, Any]:
    suggestions = [{"action": one.action, "gain": one.gain, "why": one.why} for one in bottleneck.suggestions]
    return {
        "kind": bottleneck.kind,
        "share": bottleneck.share,
        "sentence": bottleneck.sentence,
        "suggestions": suggestions,
    }


def explanation_text(split: TimeSplit, bottlenecks: Sequence[RunBottleneck], *, has_profile: bool) -> str:
    """Return the whole explanation."""
    parts = [_ranks(split.steady_state), _around(split), _bottlenecks(bottlenecks, split)]
    if bottlenecks and bottlenecks[0].kind == "link" and not has_profile:
        parts.append("gains are lower bounds; to measure hidden communication too: paceline train --profile")
    return "\n\n".join(parts)


def _ranks(totals: PhaseTotals) -> str:
    """Return a table of the step by rank: all ranks if few, otherwise the slowest, the median and the fastest."""
    number = len(totals.seconds)
    rows = [_row(str(rank), totals, np.array([rank])) for rank in _shown(totals)]
    if number > 1:
        rows.append(_row("mean" if number <= MOST_RANKS else f"mean of {count(number)}", totals, np.arange(number)))
    return table(["rank", *STEP_PHASES, "step"], rows)


def _shown(totals: PhaseTotals) -> list[int]:
    number = len(totals.seconds)
    if number <= MOST_RANKS:
        return list(range(number))
    latest_first = np.argsort(totals.phases["straggler"], kind="stable")  # the rank that waits least finishes last
    return [int(rank) for rank in (*latest_first[:4], latest_first[number // 2], *latest_first[-2:])]


def _row(name: str, totals: PhaseTotals, ranks: np.ndarray) -> list[str]:
    means = [float(totals.per_step(phase)[ranks].mean()) for phase in STEP_PHASES]
    return [name, *map(step_time, means), step_time(float(totals.step[ranks].mean()))]


def _around(split: TimeSplit) -> str:
    """Return a line with the wall time as the sum of its phases."""
    total = split.total
    seconds = {phase: float(values.mean()) for phase, values in total.phases.items()}
    wall = float(total.seconds.mean())
    steps = sum(seconds[phase] for phase in STEP_PHASES)
    around = ", ".join(f"{PHASES[phase].label} {duration(seconds[phase])}" for phase in OTHER_PHASES)
    left = f"other {duration(max(seconds[REMAINDER], 0.0))} ({100 * seconds[REMAINDER] / wall:.1f}%)"
    return f"{duration(wall)} in total: {plural(total.steps, 'step')} {duration(steps)}, {around}, {left}"


def nothing_found(split: TimeSplit) -> str:
    """Return what a run without a named bottleneck spent its time on: nothing that the figures show is left out."""
    if split.total.steps < FEWEST_STEPS:
        found = f"{plural(split.total.steps, 'step')} are too few to name a bottleneck; {FEWEST_STEPS} are needed"
    else:
        found = "no bottleneck costs 10% of the training time"
    shares = {name: float(seconds.mean() / split.total.seconds.mean()) for name, seconds in split.total.phases.items()}
    large = [
        f"{PHASES[name].text} takes {100 * shares[name]:.0f}% of the time" for name in QUIET if shares[name] >= LEAST
    ]
    return "; ".join([found, *large])


def _bottlenecks(bottlenecks: Sequence[RunBottleneck], split: TimeSplit) -> str:
    if not bottlenecks:
        return nothing_found(split)
    blocks = []
    for bottleneck in bottlenecks:
        lines = [f"{bottleneck.kind}, {100 * bottleneck.share:.0f}% of the time: {bottleneck.sentence}"]
        suggestions = bottleneck.suggestions[:MOST_SUGGESTIONS]
        width = max((len(suggestion.action) for suggestion in suggestions), default=0)
        lines += [
            f"  {suggestion.gain:.1f}×  {suggestion.action:<{width}}  {suggestion.why}" for suggestion in suggestions
        ]
        blocks.append("\n".join(lines))
    return "\n".join(blocks)


def profile_text(profile: Profile) -> str:
    """Return the profile as text."""
    parts = [_head(profile), _steps(profile), _buckets(profile)]
    if profile.world_size > 1:
        parts += [_link(profile), _rank_rows(profile)]
    return "\n\n".join(parts)


def _head(profile: Profile) -> str:
    ranks = plural(profile.world_size, "rank")
    nodes = "" if len(profile.ranks_per_node) == 1 else f" on {len(profile.ranks_per_node)} hosts"
    return (
        f"{profile.model}, {size(profile.gradient_bytes)} of gradients, {profile.samples_per_rank} samples per rank, "
        f"{ranks}{nodes}, {profile.device}"
    )


def _steps(profile: Profile) -> str:
    rows = []
    for kind, ranks in (("without communication", profile.free), ("real", profile.real)):
        rows.append([kind, *(step_time(_median(ranks, name)) for name in COLUMNS)])
    return table(["step", *COLUMNS], rows)


def _median(ranks: tuple[RankSteps, ...], name: str) -> float:
    return median(seconds for rank in ranks for seconds in getattr(rank, name))


def _buckets(profile: Profile) -> str:
    rows = [
        [str(place), size(bucket.bytes), *map(step_time, (bucket.ready, bucket.ready_real, bucket.done_real))]
        for place, bucket in enumerate(profile.buckets)
    ]
    if len(rows) > MOST_ROWS:
        rows = [*rows[: MOST_ROWS - 2], ["…"] * 5, rows[-1]]
    return table(["bucket", "size", "ready without communication", "ready", "done"], rows)


def _link(profile: Profile) -> str:
    rows = [[size(point.bytes), str(point.in_flight), step_time(point.seconds)] for point in profile.link]
    found = f"link: {bit_rate(profile.bandwidth)}, {1e6 * profile.latency:.0f} µs per message ({profile.backend})"
    return table(["all-reduce of", "at once", "takes"], rows) + f"\n{found}"


def _rank_rows(profile: Profile) -> str:
    means, spreads = profile.compute_means, profile.compute_spreads
    order = sorted(range(profile.world_size), key=lambda rank: -means[rank])[:MOST_ROWS]
    rows = [[str(rank), step_time(means[rank]), f"±{100 * spreads[rank] / means[rank]:.0f}%"] for rank in order]
    return table(["slowest ranks", "computing", "from step to step"], rows)
