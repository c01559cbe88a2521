"""Runs as rows of a table and as JSON values."""

import shlex
import time
from typing import Any

from paceline.core.score_text import main_score, score_value
from paceline.core.units import value_text
from paceline.records.compare_runs import Difference, RunComparison, result_key, results
from paceline.records.reader import RunSummary, read_environments


def difference_cells(one: Difference) -> list[str]:
    """Return a row with the name and the value of every run."""
    return [one.name, *(value_text(one.name, value) for value in one.values)]


def comparison_as_json(comparison: RunComparison) -> dict[str, Any]:
    """Return a comparison as plain values."""
    found: dict[str, Any] = {
        "settings": {one.name: list(one.values) for one in comparison.settings},
        "results": {result_key(one.name): list(one.values) for one in comparison.results},
    }
    if comparison.scores:
        found["mean"] = {result_key(one.name): one.mean for one in comparison.scores}
        found["deviation"] = {result_key(one.name): one.deviation for one in comparison.scores}
    return found


def run_place(run: RunSummary) -> dict[str, str]:
    """Return where and how the last start of a run trained, and where its checkpoints are."""
    starts = read_environments(run.folder)
    last = starts[-1] if starts else {}
    ranks = last.get("world_size")
    places = {
        "starts": str(len(starts)),
        "ranks": "" if ranks is None else f"{ranks}, mode {last.get('mode', 'unknown')}",
        "device": str(last.get("device", "")),
        "command": shlex.join(last.get("command", [])),
        "checkpoints": str(run.folder.checkpoints),
    }
    return {name: text for name, text in places.items() if text}


HEAD = ("run", "started", "model", "data", "epochs", "best", "state")
"""The columns of the list of runs."""


def run_row(run: RunSummary) -> list[str]:
    """Return a run as a row of the list."""
    best = "–" if run.best is None else _score(run.best)
    steps = run.config.steps
    length = f"{run.epochs}/{run.config.epochs}" if steps is None else f"{run.step}/{steps} steps"
    return [run.folder.name, started_text(run), *run.trained, length, best, run.state]


def _score(best: dict[str, Any]) -> str:
    name = main_score(best)
    text = score_value(name, best[name])
    return text if name == "top1" else f"{name} {text}"


def started_text(run: RunSummary) -> str:
    """Return when a run was started."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(run.started))


def run_as_json(run: RunSummary) -> dict[str, Any]:
    """Return a run with its results and settings as plain values."""
    found = {result_key(name): value for name, value in results(run).items()}
    return {"run": str(run.folder.path), "started": run.started} | found | {"config": run.config.as_dict()}
