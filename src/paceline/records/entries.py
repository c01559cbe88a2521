"""The records of a run: one frozen record per event."""

import dataclasses
import math
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from paceline.core.metrics import Scores
from paceline.core.score_text import score_text
from paceline.core.units import duration
from paceline.records.phases import PhaseRecord, RankFacts

SplitName = Literal["train", "valid", "test"]


class State(StrEnum):
    """The state of a rank, and so of its run."""

    READY = "READY"
    TRAINING = "TRAINING"
    FINISHED = "FINISHED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"

    @property
    def is_final(self) -> bool:
        """Tell whether the run is over."""
        return self in {State.FINISHED, State.STOPPED, State.FAILED}


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """A message for the user: the header, a warning, how to resume."""

    text: str
    level: Literal["plain", "info", "warning"] = "info"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pulse:
    """An update a few times per second, for progress bars; `score` covers the current interval."""

    step: int
    epoch: int
    score: Scores
    samples_per_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRecord:
    """Training between two records: means over the interval that ends at `step`."""

    step: int
    epoch: int
    score: Scores
    lr: float
    samples_per_s: float
    seconds: float
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds of the interval by phase, on the lead rank."""
    utilisation: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochRecord:
    """A whole epoch, with the evaluation that followed it if there was one."""

    step: int
    epoch: int
    train: Scores
    valid: Scores | None
    is_best: bool
    samples_per_s: float
    seconds: float
    num_unreadable: int | None = None
    """Images that could not be decoded so far, on any rank; None if such an image stops the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalRecord:
    """An evaluation within an epoch, or of the best checkpoint on the test samples."""

    step: int
    """The step of the model that is scored."""
    epoch: int
    split: SplitName
    score: Scores
    is_best: bool
    seconds: float
    split_samples: int
    """Samples in the split; a run that ends within its first epoch scores only some of them."""


Entry = Note | Pulse | StepRecord | EpochRecord | EvalRecord | RankFacts | PhaseRecord


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class RunResult:
    """The result of a run: its scores, its folder, and its history, as rows for pandas."""

    folder: Path
    state: State
    step: int
    epochs: float
    best: Scores | None
    test: Scores | None
    """The score of the best checkpoint on the test samples."""
    seconds: float
    test_step: int | None = None
    """The step of that checkpoint."""
    signal: int | None = None
    """The signal that stopped it."""
    num_unreadable: int | None = None
    """Images that could not be decoded, on any rank; None if such an image stops the run."""

    @property
    def history(self) -> list[dict[str, Any]]:
        """A row per epoch, as in pandas.DataFrame(result.history): its step and the scores of both splits.

        A run that ends within its first epoch has a row per evaluation. It is read from the run folder.
        """
        from paceline.records.folder import RunFolder  # noqa: PLC0415 - folders know the settings, which know scores
        from paceline.records.reader import read_metrics  # noqa: PLC0415

        records = [record for record in read_metrics(RunFolder(self.folder)) if record.get("split") != "test"]
        kind = "epoch" if any(record["kind"] == "epoch" for record in records) else "eval"
        return [{key: row[key] for key in row if key != "kind"} for row in records if row["kind"] == kind]

    def __repr__(self) -> str:
        scores = [(name, score) for name, score in (("best", self.best), ("test", self.test)) if score is not None]
        shown = [f"{split} {score_text(score.by_name)}" for split, score in scores]
        facts = [str(self.folder), self.state.lower(), f"{self.epochs:.3g} epochs in {duration(self.seconds)}", *shown]
        return f"<RunResult {', '.join(facts)}>"


def record_as_json(entry: StepRecord | EpochRecord | EvalRecord) -> dict[str, Any]:
    """Return a record as one flat line of metrics.jsonl."""
    line: dict[str, Any] = {"kind": type(entry).__name__.removesuffix("Record").lower()}
    for item in dataclasses.fields(entry):
        value = getattr(entry, item.name)
        if isinstance(value, Scores):
            prefix = "" if item.name == "score" else f"{item.name}_"
            line |= {prefix + key: _finite(number) for key, number in value.as_dict().items()}
        elif value is not None and value != {}:
            line[item.name] = value
    return line


def _finite(number: float) -> float | None:
    """Return a score as JSON has it: no number for nan and inf."""
    return number if math.isfinite(number) else None
