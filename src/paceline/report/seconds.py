"""Where the time goes: the split of runs and ranks as stacked bars."""

from collections.abc import Mapping, Sequence

import numpy as np

from paceline.analysis.phases import REMAINDER, Ranks, Sums
from paceline.analysis.story import Story
from paceline.core.units import duration, plural
from paceline.records.phases import OTHER_PHASES, STEP_PHASES
from paceline.report.figures import Bars, Key, Row, Segment, Table, Tick, nice_ticks

NAMES = {
    "data": "data wait", "copy": "copy", "forward": "forward", "backward": "backward",
    "communication": "exposed communication", "straggler": "waiting for slower ranks", "update": "update",
    "start": "start-up", "steps": "training steps", "evaluate": "evaluation", "save": "checkpoints",
    "record": "records and trackers", REMAINDER: "unexplained",
}  # fmt: skip
MOST_RANKS = 16
WORST = 6
SMALLEST = 0.001
"""Shares below this are left out of the key."""


def whole_run(story: Story) -> Bars | None:
    """Return one bar for the wall time of a run."""
    if story.split is None:
        return None
    whole = story.split.whole
    parts = {"steps": sum(float(whole.phases[phase].mean()) for phase in STEP_PHASES)}
    parts |= {phase: max(0.0, float(whole.phases[phase].mean())) for phase in (*OTHER_PHASES, REMAINDER)}
    wall = float(whole.seconds.mean())
    return Bars(
        title="The whole run",
        alt="Wall time: " + _spoken(parts) + ".",
        keys=_keys(parts),
        rows=[_row("wall time", parts, wall, total=duration(wall))],
    )


def steps_of_ranks(story: Story) -> Bars | None:
    """Return a bar per rank for its mean step; where there are many, the median one, the fastest and the slowest."""
    if story.split is None:
        return None
    split, steady = story.split, story.split.steady
    chosen = [(f"rank {rank}", rank) for rank in range(split.world_size)]
    note = ""
    if split.world_size > MOST_RANKS:
        order = np.argsort(own_seconds(steady), kind="stable")
        typical = int(order[len(order) // 2])
        worst = [int(rank) for rank in order[::-1][:WORST]]
        chosen = [("fastest", int(order[0])), ("median", typical), *((f"rank {rank}", rank) for rank in worst)]
        note = _distribution(steady)
    longest = float(steady.step.max())
    rows = [
        _row(name, _phases(steady, rank), longest, note=split.facts.hosts[rank], total=ms(steady.step[rank]))
        for name, rank in chosen
    ]
    means = {phase: float(steady.per_step(phase).mean()) for phase in STEP_PHASES}
    return Bars(
        title="A step, rank by rank" if split.world_size > 1 else "A step",
        alt=f"Mean step of {plural(split.world_size, 'rank')}: {_spoken(means)}.",
        keys=_keys(means),
        rows=rows,
        ticks=ms_ticks(longest),
        note=note,
    )


def steps_of_runs(stories: Sequence[Story]) -> Bars | None:
    """Return a bar per run for its mean step, all on one scale."""
    known = [(story, story.split.steady) for story in stories if story.split is not None]
    if not known:
        return None
    longest = max(float(steady.step.mean()) for _, steady in known)
    rows: list[Row] = []
    total: dict[str, float] = dict.fromkeys(STEP_PHASES, 0.0)
    for story, steady in known:
        means = {phase: float(steady.per_step(phase).mean()) for phase in STEP_PHASES}
        total = {phase: total[phase] + seconds for phase, seconds in means.items()}
        rows.append(_row(story.label, means, longest, total=ms(sum(means.values()))))
    return Bars(
        title="A step, run by run",
        alt="Mean step: " + "; ".join(f"{row.name} {row.total}" for row in rows) + ".",
        keys=[Key(style=key.style, name=key.name, share="") for key in _keys(total)],
        rows=rows,
        ticks=ms_ticks(longest),
    )


def split_table(story: Story) -> Table | None:
    """Return the split of every rank as a table: milliseconds of a mean step, and seconds around the steps."""
    if story.split is None:
        return None
    split = story.split
    head = ["rank", "host", "step_ms", *(f"{phase}_ms" for phase in STEP_PHASES), *(f"{p}_s" for p in OTHER_PHASES)]
    steps = np.array([split.steady.per_step(phase) for phase in STEP_PHASES]) * 1000
    around = np.array([split.whole.phases[phase] for phase in OTHER_PHASES])
    rows = [
        [str(rank), split.facts.hosts[rank], f"{steps[:, rank].sum():.4g}"]
        + [f"{value:.4g}" for value in (*steps[:, rank], *around[:, rank])]
        for rank in range(split.world_size)
    ]
    return Table(name="ranks", title=f"Time of every rank of {story.label}", head=head, rows=rows)


def ms(seconds: float) -> str:
    """Return "45.2 ms", or seconds where there are many."""
    return (
        duration(seconds)
        if seconds >= 10
        else f"{1000 * seconds:,.0f} ms"
        if seconds >= 0.1
        else (f"{1000 * seconds:.3g} ms")
    )


def own_seconds(sums: Sums) -> Ranks:
    """Return what each rank does in a step by itself, without waiting for gradients or others: the slow ones show."""
    return sums.step - sums.per_step("communication") - sums.per_step("straggler")


def _phases(sums: Sums, rank: int) -> dict[str, float]:
    return {phase: float(sums.per_step(phase)[rank]) for phase in STEP_PHASES}


def _row(name: str, parts: Mapping[str, float], longest: float, *, total: str, note: str = "") -> Row:
    segments, at = [], 0.0
    for style, seconds in parts.items():
        segments.append(segment(style, at, seconds, longest))
        at += seconds
    return Row(name=name, note=note, total=total, segments=visible(segments))


def segment(style: str, start: float, seconds: float, whole: float) -> Segment:
    """Return a part of a bar."""
    title = f"{NAMES.get(style, style)}: {ms(seconds)}"
    return Segment(style=style, start=round(100 * start / whole, 3), width=round(100 * seconds / whole, 3), title=title)


def visible(segments: Sequence[Segment]) -> list[Segment]:
    """Return the parts that are wide enough to be seen."""
    return [segment for segment in segments if segment.width >= 100 * SMALLEST]


def _keys(parts: Mapping[str, float]) -> list[Key]:
    whole = sum(parts.values()) or 1.0
    return [
        Key(style=style, name=NAMES[style], share=_percent(seconds / whole))
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


def _distribution(sums: Sums) -> str:
    own = np.sort(own_seconds(sums))
    low, middle, high = (float(np.quantile(own, q)) for q in (0.05, 0.5, 0.95))
    return (
        f"{len(own):,} ranks. Without waiting for others a step takes {ms(middle)} at the median, "
        f"{ms(low)} to {ms(high)} in the middle 90%, {ms(float(own[-1]))} at the slowest."
    )
