"""Stacked bars of the time of runs and ranks by phase."""

from collections.abc import Mapping, Sequence

import numpy as np

from paceline.core.units import duration, plural, step_time
from paceline.explain.time_split import REMAINDER, PhaseTotals, Ranks
from paceline.records.phases import OTHER_PHASES, PHASES, STEP_PHASES
from paceline.report.figures import Bars, Key, PageTable, Row, Segment, Tick, nice_ticks
from paceline.report.run_data import RunData

STEPS = "steps"
"""All phases of the steps combined, next to the phases around them."""
HIDDEN = "hidden"
"""Communication that overlaps with the backward pass."""
LABELS = {phase.css_class: phase.label for phase in PHASES.values()} | {
    STEPS: "training steps",
    REMAINDER: "unexplained",
    HIDDEN: "hidden communication",
}
"""Label of each kind of segment, by its CSS class."""
MOST_RANKS = 16
WORST = 6
SMALLEST = 0.001
"""Fractions below this are left out of the legend."""


def whole_run(run: RunData) -> Bars | None:
    """Return one bar for the wall time of a run."""
    if run.split is None:
        return None
    total = run.split.total
    parts = {STEPS: sum(float(total.phases[phase].mean()) for phase in STEP_PHASES)}
    parts |= {phase: max(0.0, float(total.phases[phase].mean())) for phase in (*OTHER_PHASES, REMAINDER)}
    wall = float(total.seconds.mean())
    return Bars(
        title="The whole run",
        alt="Wall time: " + _spoken(parts) + ".",
        keys=_keys(parts),
        rows=[_row("wall time", parts, wall, total=duration(wall))],
    )


def steps_of_ranks(run: RunData) -> Bars | None:
    """Return a bar per rank for its mean step; if there are many, the median, the fastest and the slowest."""
    if run.split is None:
        return None
    split, totals = run.split, run.split.steady_state
    chosen = [(f"rank {rank}", rank) for rank in range(split.world_size)]
    note = ""
    if split.world_size > MOST_RANKS:
        order = np.argsort(own_seconds(totals), kind="stable")
        typical = int(order[len(order) // 2])
        worst = [int(rank) for rank in order[::-1][:WORST]]
        chosen = [("fastest", int(order[0])), ("median", typical), *((f"rank {rank}", rank) for rank in worst)]
        note = _distribution(totals)
    longest = float(totals.step.max())
    rows = [
        _row(name, _phases(totals, rank), longest, note=split.facts.hosts[rank], total=step_time(totals.step[rank]))
        for name, rank in chosen
    ]
    means = {phase: float(totals.per_step(phase).mean()) for phase in STEP_PHASES}
    return Bars(
        title="A step, rank by rank" if split.world_size > 1 else "A step",
        alt=f"Mean step of {plural(split.world_size, 'rank')}: {_spoken(means)}.",
        keys=_keys(means),
        rows=rows,
        ticks=ms_ticks(longest),
        note=note,
    )


def steps_of_runs(runs: Sequence[RunData]) -> Bars | None:
    """Return a bar per run for its mean step, all on one scale."""
    known = [(run, run.split.steady_state) for run in runs if run.split is not None]
    if not known:
        return None
    longest = max(float(totals.step.mean()) for _, totals in known)
    rows: list[Row] = []
    seconds_of: dict[str, float] = dict.fromkeys(STEP_PHASES, 0.0)
    for run, totals in known:
        means = {phase: float(totals.per_step(phase).mean()) for phase in STEP_PHASES}
        seconds_of = {phase: seconds_of[phase] + seconds for phase, seconds in means.items()}
        rows.append(_row(run.label, means, longest, total=step_time(sum(means.values()))))
    return Bars(
        title="A step, run by run",
        alt="Mean step: " + "; ".join(f"{row.name} {row.total}" for row in rows) + ".",
        keys=[Key(style=key.style, name=key.name, share="") for key in _keys(seconds_of)],
        rows=rows,
        ticks=ms_ticks(longest),
    )


def split_table(run: RunData) -> PageTable | None:
    """Return the phases of every rank as a table: milliseconds of a mean step, and seconds around the steps."""
    if run.split is None:
        return None
    split = run.split
    head = ["rank", "host", "step_ms", *(f"{phase}_ms" for phase in STEP_PHASES), *(f"{p}_s" for p in OTHER_PHASES)]
    steps = np.array([split.steady_state.per_step(phase) for phase in STEP_PHASES]) * 1000
    around = np.array([split.total.phases[phase] for phase in OTHER_PHASES])
    rows = [
        [str(rank), split.facts.hosts[rank], f"{steps[:, rank].sum():.4g}"]
        + [f"{value:.4g}" for value in (*steps[:, rank], *around[:, rank])]
        for rank in range(split.world_size)
    ]
    return PageTable(name="ranks", title=f"Time of every rank of {run.label}", head=head, rows=rows)


def own_seconds(totals: PhaseTotals) -> Ranks:
    """Return the compute time of each rank per step, without waiting for gradients or other ranks."""
    return totals.step - totals.per_step("communication") - totals.per_step("straggler")


def _phases(totals: PhaseTotals, rank: int) -> dict[str, float]:
    return {phase: float(totals.per_step(phase)[rank]) for phase in STEP_PHASES}


def _row(name: str, parts: Mapping[str, float], longest: float, *, total: str, note: str = "") -> Row:
    segments, at = [], 0.0
    for style, seconds in parts.items():
        segments.append(segment(style, at, seconds, longest))
        at += seconds
    return Row(name=name, note=note, total=total, segments=visible(segments))


def segment(style: str, start: float, seconds: float, whole: float) -> Segment:
    """Return a segment of a bar."""
    title = f"{LABELS[style]}: {step_time(seconds)}"
    return Segment(style=style, start=round(100 * start / whole, 3), width=round(100 * seconds / whole, 3), title=title)


def visible(segments: Sequence[Segment]) -> list[Segment]:
    """Return the segments that are wide enough to be visible."""
    return [segment for segment in segments if segment.width >= 100 * SMALLEST]


def _keys(parts: Mapping[str, float]) -> list[Key]:
    whole = sum(parts.values()) or 1.0
    return [
        Key(style=style, name=LABELS[style], share=_percent(seconds / whole))
        for style, seconds in parts.items()
        if seconds / whole >= SMALLEST
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%" if share < 0.0995 else f"{100 * share:.0f}%"


def _spoken(parts: Mapping[str, float]) -> str:
    return ", ".join(f"{key.name} {key.share}" for key in _keys(parts))


def ms_ticks(longest: float) -> list[Tick]:
    """Return the marks of an axis of milliseconds."""
    values = [value for value in nice_ticks(0, 1000 * longest, most=5) if value <= 1000 * longest * 1.001]
    return [
        Tick(round(value / (10 * longest), 2), f"{value:g}" + (" ms" if value == values[-1] else ""))
        for value in values
    ]


def _distribution(totals: PhaseTotals) -> str:
    own = np.sort(own_seconds(totals))
    low, middle, high = (float(np.quantile(own, q)) for q in (0.05, 0.5, 0.95))
    return (
        f"{len(own):,} ranks. Without waiting for others a step takes {step_time(middle)} at the median, "
        f"{step_time(low)} to {step_time(high)} in the middle 90%, {step_time(float(own[-1]))} at the slowest."
    )
