"""What a tracker is, and how a failing one is kept from stopping the run."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from paceline.core.config import Config
from paceline.records.entries import Entry, RunResult
from paceline.records.folder import RunFolder


@dataclass(frozen=True, kw_only=True, slots=True)
class RunInfo:
    """What a tracker is told when it opens."""

    folder: RunFolder
    config: Config
    total_steps: int
    steps_per_epoch: int
    first_step: int
    """Steps done before; records beyond it are of an attempt that did not survive and must go."""


class Tracker(Protocol):
    """Somewhere that records go."""

    name: str

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
    """A tracker that may fail: the first failure is reported once, then it is left alone."""

    def __init__(self, tracker: Tracker, report: Callable[[str], None]) -> None:
        self.name = tracker.name
        self._tracker = tracker
        self._report = report
        self._works = True

    def open(self, run: RunInfo) -> None:
        """Get ready."""
        self._try(self._tracker.open, run)

    def record(self, entry: Entry) -> None:
        """Take one record."""
        self._try(self._tracker.record, entry)

    def close(self, result: RunResult | None) -> None:
        """Finish; a tracker that has failed lets go of its files all the same."""
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
        except Exception as cause:  # noqa: BLE001 - whatever a tracker does must not stop training
            self._works = False
            self._report(f"{self.name} is off for the rest of this run: {type(cause).__name__}: {cause}")
