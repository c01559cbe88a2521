"""Runs side by side: which settings differ, which results, and what the seed alone changes."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.core.score_text import LABELS, main_score
from paceline.records.reader import RunSummary

SAME_WORK = frozenset(
    {"name", "runs_dir", "data_dir", "track", "console", "log_every", "keep", "save_async", "profile"}
)
"""Settings of files and logging: runs that differ by these do the same work."""
SCORES = ("best valid ", "test ")


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A setting or result of several runs; None for a run that does not have it."""

    name: str
    values: tuple[Any, ...]

    @property
    def mean(self) -> float:
        """The mean over the runs."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float:
        """The standard deviation of the runs, as a sample of all seeds."""
        return statistics.stdev(self.values)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunComparison:
    """The differences between runs."""

    settings: tuple[Difference, ...]
    results: tuple[Difference, ...]

    @property
    def only_seeds(self) -> bool:
        """Tell whether the runs differ by their seeds only, all of which are different."""
        names = {one.name for one in self.settings} - SAME_WORK
        return names == {"seed"} and all(len(set(one.values)) == len(one.values) for one in self.seeds)

    @property
    def seeds(self) -> tuple[Difference, ...]:
        """The setting seed, if it differs."""
        return tuple(one for one in self.settings if one.name == "seed")

    @property
    def scores(self) -> tuple[Difference, ...]:
        """The scores that all runs have, of runs that differ by their seeds only: these have a mean."""
        if not self.only_seeds:
            return ()
        scored = (one for one in self.results if one.name.startswith(SCORES) and one.name != "test samples")
        return tuple(one for one in scored if None not in one.values)


def compare_runs(*runs: RunSummary) -> RunComparison:
    """Compare settings and results of runs; equal settings are left out, results are all shown."""
    metrics = _metrics(runs)
    settings = [run.config.as_dict() for run in runs]
    names = [
        name
        for name in dict.fromkeys(name for one in settings for name in one)
        if any(one.get(name) != settings[0].get(name) for one in settings)
    ]
    found = [results(run, metrics) for run in runs]
    return RunComparison(
        settings=tuple(Difference(name=name, values=tuple(one.get(name) for one in settings)) for name in names),
        results=tuple(Difference(name=name, values=tuple(one[name] for one in found)) for name in found[0]),
    )


def results(run: RunSummary, metrics: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the results of a run, by their names in a table: the loss and these scores, by default its own."""
    scores = [*(_metrics([run]) if metrics is None else metrics), "loss"]
    best = {f"best valid {LABELS.get(name, name)}": _pick(run.best, name) for name in scores}
    test = {f"test {LABELS.get(name, name)}": _pick(run.test, name) for name in scores}
    return {
        "state": run.state,
        "epochs": run.epochs,
        "steps": run.step,
        **best,
        **test,
        "test samples": _pick(run.test, "samples"),
        "run time": run.seconds,
        "CPU time": run.cpu_seconds,
        "epoch time": run.epoch_seconds,
        "step time": None if not run.samples_per_s else run.config.global_batch / run.samples_per_s,
        "samples/s": run.samples_per_s,
    }


def result_key(name: str) -> str:
    """Return the name of a result as a key of JSON, without blanks: "test acc" is test_acc, "run time" run_seconds."""
    return name.lower().replace("/", "_per_").replace("-", "").replace(" time", "_seconds").replace(" ", "_")


def _metrics(runs: Sequence[RunSummary]) -> list[str]:
    """Return the score that stands for the first run, and top-5 if a run has it; by default the accuracy."""
    scores = next((scores for run in runs[:1] if (scores := run.test or run.best)), None)
    main = "top1" if scores is None else main_score(scores)
    has_top5 = main == "top1" and any("top5" in (run.test or run.best or {}) for run in runs)
    return [name for name in (main, "top5" if has_top5 else "loss") if name != "loss"]


def _pick(score: Mapping[str, Any] | None, key: str) -> Any:
    return None if score is None else score.get(key)
