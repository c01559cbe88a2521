"""The results of `paceline verify`, as text and as plain values."""

from collections.abc import Sequence
from typing import Any

from paceline.compare.compare_text import entry_values
from paceline.core.units import count, table
from paceline.verify.trials import FirstDifference, TrialResult


def trials_text(reference: str, results: Sequence[TrialResult], *, tolerance: float | None) -> str:
    """Return the table: one line per trial."""
    head = ["trial", "is", "steps", "largest relative difference", "first difference"]
    rows = [[reference, "reference", "", "", ""]]
    rows += [_row(result, tolerance) for result in results]
    return table(head, rows)


def trials_verdict(results: Sequence[TrialResult], *, tolerance: float | None) -> str:
    """Return the verdict in a sentence."""
    bad = [result for result in results if result.fails]
    if bad:
        verb = "does" if len(bad) == 1 else "do"
        return f"different: {count(len(bad))} of {count(len(results))} trials {verb} not match the reference"
    if tolerance is None:
        return "equal: weights, buffers, optimizer and progress have the same bits in every checkpoint of every trial"
    compared = [result for result in results if result.first is None]
    worst = max((result.worst for result in compared), default=0.0)
    equal = (
        f"equal within the tolerance of --exact order, {tolerance:g}: the largest relative difference is {worst:.2g}"
    )
    others = next((result.by_design for result in results if result.first is not None), ())
    if not others:
        return equal
    text = f"--exact order does not cover {' and '.join(others)}, so the world sizes differ; use --exact bitwise"
    return f"{equal}\n{text}" if compared else text


def result_values(result: TrialResult) -> dict[str, Any]:
    """Return a result as plain values for JSON."""
    values: dict[str, Any] = {
        "trial": str(result.trial),
        "world_size": result.trial.world_size,
        "agrees": not result.fails,
        "by_design": list(result.by_design),
        "num_steps": result.num_steps,
        "worst_relative": result.worst,
    }
    kill = result.trial.kill
    if kill is not None:
        values["kill"] = {"rank": kill.rank, "step": kill.step, "resume_size": kill.resume_size}
    if result.first is not None:
        first = result.first
        values["first"] = {"step": first.step, "ranks": first.ranks} | entry_values(first.part, first.entry)
    return values


def _row(result: TrialResult, tolerance: float | None) -> list[str]:
    same = "equal" if tolerance is None or result.worst == 0 else "close"
    status = same if result.first is None else "differs" if result.fails else "by design"
    worst = "none" if result.worst == 0 else f"{result.worst:.2g}"
    return [str(result.trial), status, str(result.num_steps), worst, _first(result.first)]


def _first(first: FirstDifference | None) -> str:
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
