"""Where the time of a run went, on one screen: the split of the ranks, what limits, what to try."""

from collections.abc import Sequence

import numpy as np

from paceline.analysis.evidence import Finding
from paceline.analysis.phases import REMAINDER, Sums, TimeSplit
from paceline.core.units import count, duration, plural, step_time
from paceline.records.phases import OTHER_PHASES, STEP_PHASES
from paceline.report.tables import table

MOST_RANKS = 8
AROUND = {"start": "start-up", "evaluate": "evaluation", "save": "checkpoints", "record": "records"}
MOST_REMEDIES = 4


def explanation_text(split: TimeSplit, findings: Sequence[Finding], *, has_profile: bool) -> str:
    """Return the whole explanation."""
    parts = [_ranks(split.steady), _around(split), _verdict(findings)]
    if findings and findings[0].cause == "link" and not has_profile:
        parts.append(
            "gains are at least these: paceline train --profile also shows what hides behind the backward pass"
        )
    return "\n\n".join(parts)


def _ranks(steady: Sums) -> str:
    """Return a table of the step, rank by rank: all of few ranks, the slowest, the middle and the fastest of many."""
    number = len(steady.seconds)
    rows = [_row(str(rank), steady, np.array([rank])) for rank in _shown(steady)]
    if number > 1:
        rows.append(_row("mean" if number <= MOST_RANKS else f"mean of {count(number)}", steady, np.arange(number)))
    return table(["rank", *STEP_PHASES, "step"], rows)


def _shown(steady: Sums) -> list[int]:
    number = len(steady.seconds)
    if number <= MOST_RANKS:
        return list(range(number))
    latest_first = np.argsort(steady.phases["straggler"], kind="stable")  # who waits least was waited for
    return [int(rank) for rank in (*latest_first[:4], latest_first[number // 2], *latest_first[-2:])]


def _row(name: str, steady: Sums, ranks: np.ndarray) -> list[str]:
    means = [float(steady.per_step(phase)[ranks].mean()) for phase in STEP_PHASES]
    return [name, *map(step_time, means), step_time(float(steady.step[ranks].mean()))]


def _around(split: TimeSplit) -> str:
    """Return one line for the whole time, in which the parts add up."""
    whole = split.whole
    seconds = {phase: float(values.mean()) for phase, values in whole.phases.items()}
    total = float(whole.seconds.mean())
    steps = sum(seconds[phase] for phase in STEP_PHASES)
    around = ", ".join(f"{AROUND[phase]} {duration(seconds[phase])}" for phase in OTHER_PHASES)
    left = f"anything else {duration(max(seconds[REMAINDER], 0.0))} ({100 * seconds[REMAINDER] / total:.1f}%)"
    return f"{duration(total)} in all: {plural(whole.steps, 'step')} {duration(steps)}, {around}, {left}"


def _verdict(findings: Sequence[Finding]) -> str:
    if not findings:
        return "nothing stands out"
    blocks = []
    for finding in findings:
        lines = [f"{finding.cause}, {100 * finding.share:.0f}% of the time: {finding.sentence}"]
        remedies = finding.remedies[:MOST_REMEDIES]
        width = max((len(remedy.words) for remedy in remedies), default=0)
        lines += [f"  {remedy.gain:.1f}×  {remedy.words:<{width}}  {remedy.why}" for remedy in remedies]
        blocks.append("\n".join(lines))
    return "\n".join(blocks)
