"""Two runs side by side: which settings differ, and which results."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.core.score_text import LABELS, main_score
from paceline.records.reader import RunSummary


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A setting or result that differs between two runs; None if a run does not have it."""

    name: str
    first: Any
    second: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class RunComparison:
    """The differences between two runs."""

    settings: tuple[Difference, ...]
    results: tuple[Difference, ...]


def compare_runs(first: RunSummary, second: RunSummary) -> RunComparison:
    """Compare settings and results of two runs; equal settings are left out, results are all shown."""
    metric = _metric(first)
    before, after = first.config.as_dict(), second.config.as_dict()
    names = [name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]
    return RunComparison(
        settings=tuple(Difference(name=name, first=before.get(name), second=after.get(name)) for name in names),
        results=tuple(
            Difference(name=name, first=value, second=other)
            for (name, value), other in zip(
                results(first, metric).items(), results(second, metric).values(), strict=True
            )
        ),
    )


def results(run: RunSummary, metric: str | None = None) -> dict[str, Any]:
    """Return the results of a run, by their names in the table: the loss and one metric, by default its main one."""
    metric = _metric(run) if metric is None else metric
    label = LABELS.get(metric, metric)
    shown = {} if metric == "loss" else {f"best valid {label}": _pick(run.best, metric)}
    tested = {} if metric == "loss" else {f"test {label}": _pick(run.test, metric)}
    return {
        "state": run.state,
        "epochs": run.epochs,
        "steps": run.step,
        **shown,
        "best valid loss": _pick(run.best, "loss"),
        **tested,
        "test loss": _pick(run.test, "loss"),
        "test samples": _pick(run.test, "samples"),
        "samples/s": run.samples_per_s,
    }


def _metric(run: RunSummary) -> str:
    """Return the score that stands for a run; a run without one is shown as an image classification."""
    scores = run.test or run.best
    return "top1" if scores is None else main_score(scores)


def _pick(score: Mapping[str, Any] | None, key: str) -> Any:
    return None if score is None else score.get(key)
