"""What `paceline verify` found, as text and as plain values."""

from collections.abc import Sequence
from typing import Any

from paceline.analysis.trials import Difference, Finding
from paceline.core.units import count
from paceline.report.comparison import entry_values
from paceline.report.tables import table


def findings_text(reference: str, findings: Sequence[Finding], *, tolerance: float | None) -> str:
    """Return the table: one line per trial."""
    head = ["trial", "is", "steps", "largest relative difference", "first difference"]
    rows = [[reference, "reference", "", "", ""]]
    rows += [_row(finding, tolerance) for finding in findings]
    return table(head, rows)


def verdict(findings: Sequence[Finding], *, tolerance: float | None) -> str:
    """Return the outcome in a sentence."""
    bad = [finding for finding in findings if finding.first is not None]
    if bad:
        return f"different: {count(len(bad))} of {count(len(findings))} trials left the reference"
    if tolerance is None:
        return "equal: weights, buffers, optimizer and progress have the same bits in every checkpoint of every trial"
    worst = max((finding.worst for finding in findings), default=0.0)
    return f"equal within the tolerance of --exact order, {tolerance:g}: the largest relative difference is {worst:.2g}"


def finding_values(finding: Finding) -> dict[str, Any]:
    """Return a finding as plain values for JSON."""
    values: dict[str, Any] = {
        "trial": str(finding.trial),
        "world_size": finding.trial.world_size,
        "agrees": finding.first is None,
        "num_steps": finding.num_steps,
        "worst_relative": finding.worst,
    }
    kill = finding.trial.kill
    if kill is not None:
        values["kill"] = {"rank": kill.rank, "step": kill.step, "resume_size": kill.resume_size}
    if finding.first is not None:
        first = finding.first
        values["first"] = {"step": first.step, "ranks": first.ranks} | entry_values(first.part, first.entry)
    return values


def _row(finding: Finding, tolerance: float | None) -> list[str]:
    same = "equal" if tolerance is None or finding.worst == 0 else "close"
    status = same if finding.first is None else "differs"
    worst = "none" if finding.worst == 0 else f"{finding.worst:.2g}"
    return [str(finding.trial), status, str(finding.num_steps), worst, _first(finding.first)]


def _first(first: Difference | None) -> str:
    if first is None:
        return ""
    largest = first.entry.largest
    change = f"{first.entry.values[0]} → {first.entry.values[1]}"
    if largest is not None:
        place = f"[{','.join(map(str, largest.index))}] " if largest.index else ""
        ulps = "" if largest.ulps is None else f", {count(largest.ulps)} ulps"
        change = f"{place}{largest.first:.9g} → {largest.second:.9g}{ulps}"
    ranks = "" if first.ranks is None else f" ({first.ranks})"
    return f"step {first.step}, {first.part} {first.entry.name}{ranks}: {change}"
