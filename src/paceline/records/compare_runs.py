"""Two runs side by side: which settings differ, and which results."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
    before, after = first.config.as_dict(), second.config.as_dict()
    names = [name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]
    return RunComparison(
        settings=tuple(Difference(name=name, first=before.get(name), second=after.get(name)) for name in names),
        results=tuple(
            Difference(name=name, first=value, second=other)
            for (name, value), other in zip(results(first).items(), results(second).values(), strict=True)
        ),
    )


def results(run: RunSummary) -> dict[str, Any]:
    """Return the results of a run, by their names in the table."""
    return {
        "state": run.state,
        "epochs": run.epochs,
        "steps": run.step,
        "best valid acc": _pick(run.best, "top1"),
        "best valid loss": _pick(run.best, "loss"),
        "test acc": _pick(run.test, "top1"),
        "test loss": _pick(run.test, "loss"),
        "test samples": _pick(run.test, "samples"),
        "samples/s": run.samples_per_s,
    }


def _pick(score: Mapping[str, Any] | None, key: str) -> Any:
    return None if score is None else score[key]
