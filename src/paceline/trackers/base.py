"""The interface of a tracker, the scalars that it plots, and a guard that keeps a failing one from stopping the run."""

import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.core.config import Config
from paceline.core.metrics import Scores
from paceline.core.score_text import TAGS
from paceline.records.entries import Entry, EpochRecord, EvalRecord, RunResult, StepRecord
from paceline.records.folder import RunFolder

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@dataclass(frozen=True, kw_only=True, slots=True)
class RunInfo:
    """The facts about a run that a tracker receives when it opens."""

    folder: RunFolder
    config: Config
    total_steps: int
    steps_per_epoch: int
    first_step: int
    """Steps already done; later records belong to a lost attempt and are dropped."""


class Tracker(Protocol):
    """A destination of records, called on the lead only. An error in it is reported once, and training continues."""

    def open(self, run: RunInfo) -> None:
        """Get ready; heavy imports may wait for the first record."""
        ...

    def record(self, entry: Entry) -> None:
        """Take one record."""
        ...

    def close(self, result: RunResult | None) -> None:
        """Finish; `result` is None when the run failed."""
        ...


class Guarded:
    """A tracker that may fail: its first failure is reported, then it gets no more records.

    A full disk is no such failure: the tracker gets the next records too, and continues when there is room.
    """

    def __init__(self, tracker: Tracker, report: Callable[[str], None]) -> None:
        self.name = getattr(tracker, "name", type(tracker).__name__)
        self._tracker = tracker
        self._report = report
        self._works = True
        self._waits = False
        self._is_open = False

    def open(self, run: RunInfo) -> None:
        """Get ready."""
        self._try(self._tracker.open, run)
        self._is_open = self._works

    def record(self, entry: Entry) -> None:
        """Take one record."""
        self._try(self._tracker.record, entry)

    def close(self, result: RunResult | None) -> None:
        """Finish; a tracker that has failed still closes its files."""
        if self._works:
            self._try(self._tracker.close, result)
            return
        with suppress(Exception):
            self._tracker.close(result)

    def _try(self, method: Callable[[Any], None], argument: Any) -> None:
        if not self._works:
            return
        try:
            method(argument)
            if self._waits:
                self._waits = False
                self._report(f"{self.name} continues: there is room on the disk again")
        except OSError as cause:
            if cause.errno not in FULL or not self._is_open:
                self._disable(cause)
            elif not self._waits:
                self._waits = True
                self._report(f"{self.name} waits until there is room on the disk: {cause.strerror}")
        except Exception as cause:  # noqa: BLE001 - no error of a tracker may stop training
            self._disable(cause)

    def _disable(self, cause: Exception) -> None:
        self._works = False
        self._report(f"{self.name} is disabled for the rest of this run: {type(cause).__name__}: {cause}")


def scalars(entry: Entry) -> dict[str, float]:
    """Return the values of a record by their tags, such as loss/train; none for messages and other records."""
    match entry:
        case StepRecord():
            utilisation = {f"utilisation/{name}": value for name, value in entry.utilisation.items()}
            return _named(entry.score, "train") | {"lr": entry.lr, "samples_per_s": entry.samples_per_s} | utilisation
        case EpochRecord():
            return _epoch(entry)
        case EvalRecord():
            return _named(entry.score, "val" if entry.split == "valid" else entry.split)
        case _:
            return {}


def _epoch(entry: EpochRecord) -> dict[str, float]:
    """The means over the whole epoch have separate names: loss/train already holds the last interval."""
    valid = {} if entry.valid is None else _named(entry.valid, "val")
    return {f"epoch/{name}": value for name, value in _named(entry.train, "train").items()} | valid


def _named(score: Scores, split: str) -> dict[str, float]:
    return {f"{TAGS.get(name, name)}/{split}": value for name, value in score.by_name.items()}
