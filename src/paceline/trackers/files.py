"""The records that every run keeps: metrics.jsonl and phases.jsonl for programs, log.txt for people."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paceline.records.entries import Entry, EpochRecord, EvalRecord, Pulse, RunResult, StepRecord, record_as_json
from paceline.records.folder import RunFolder
from paceline.records.phases import PhaseRecord, RankFacts, phases_as_json
from paceline.records.truncate import drop_later
from paceline.trackers.base import RunInfo
from paceline.trackers.line_file import LineFile
from paceline.trackers.lines import as_line

RANKS_PER_STEP = 20
"""An interval of phases.jsonl covers at least one step per 20 ranks."""
LINES_PER_LENGTH = 10_000
"""Lines of phases.jsonl after which its intervals become twice as long."""
SECONDS_PENDING = 30.0
"""Seconds after which a longer interval is written early, so that a crash loses little."""

NAMES = RunFolder(Path())
"""Used only for the names of files."""


class JsonLines:
    """One JSON object per record; after a resume, records of steps that were lost are dropped first."""

    name = NAMES.metrics.name

    def __init__(self) -> None:
        self._file: LineFile

    def open(self, run: RunInfo) -> None:
        """Continue the file at the step that the run continues from."""
        if run.folder.metrics.exists():
            drop_later(run.folder.metrics, run.first_step, step_of=_step, closes=_is_in_order)
        self._file = LineFile(run.folder.metrics)

    def record(self, entry: Entry) -> None:
        """Append one line, visible at once."""
        if isinstance(entry, StepRecord | EpochRecord | EvalRecord):
            self._file.write(json.dumps(record_as_json(entry)))
        else:
            self._file.flush()

    def close(self, result: RunResult | None) -> None:
        """Close the file."""
        self._file.close()


class PhaseLines:
    """The phases of every rank, in a separate file.

    With many ranks intervals are longer, and every LINES_PER_LENGTH lines they become twice as long up to
    SECONDS_PENDING, so that ten thousand steps of a thousand ranks, or a million steps of one, can be read in seconds.
    """

    name = NAMES.phases.name

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._file: LineFile
        self._now = now
        self._pending: PhaseRecord | None = None
        self._num_pending = 0
        self._pending_since = 0.0
        self._num_lines = 0

    def open(self, run: RunInfo) -> None:
        """Continue the file at the step that the run continues from."""
        path = run.folder.phases
        if path.exists():
            drop_later(path, run.first_step, step_of=_last_step, closes=lambda _record: True)
        self._file = LineFile(path)

    def record(self, entry: Entry) -> None:
        """Append one line, visible at once, when the interval is long enough."""
        if isinstance(entry, RankFacts):
            self._write(entry)
        elif isinstance(entry, PhaseRecord):
            if entry.steps == 0:
                self._flush()
                self._write(entry)
                return
            if self._pending is None:
                self._pending, self._pending_since = entry, self._now()
            else:
                self._pending += entry
            self._num_pending += 1
            is_long = (
                self._num_pending >= 2 ** (self._num_lines // LINES_PER_LENGTH)
                or self._now() - self._pending_since >= SECONDS_PENDING
            )
            if is_long and self._pending.steps * RANKS_PER_STEP >= len(entry.seconds):
                self._flush()
        else:
            self._file.flush()

    def close(self, result: RunResult | None) -> None:
        """Close the file."""
        self._flush()
        self._file.close()

    def _flush(self) -> None:
        if self._pending is not None:
            entry, self._pending, self._num_pending = self._pending, None, 0
            self._write(entry)

    def _write(self, entry: RankFacts | PhaseRecord) -> None:
        self._num_lines += 1
        self._file.write(json.dumps(phases_as_json(entry)))


class LogFile:
    """The lines of the terminal, as a file."""

    name = NAMES.log.name

    def __init__(self) -> None:
        self._file: LineFile
        self._run: RunInfo

    def open(self, run: RunInfo) -> None:
        """Append to the lines of earlier attempts."""
        self._run = run
        self._file = LineFile(run.folder.log)

    def record(self, entry: Entry) -> None:
        """Append the record's line."""
        line = None if isinstance(entry, Pulse) else as_line(entry, self._run)
        if line is None:
            self._file.flush()
        else:
            self._file.write(line)

    def close(self, result: RunResult | None) -> None:
        """Close the file."""
        self._file.close()


def _step(record: Mapping[str, Any]) -> int | None:
    return record.get("step")


def _is_in_order(record: Mapping[str, Any]) -> bool:
    """Tell whether a record was written at its step: the test of the best checkpoint comes later."""
    return record.get("split") != "test"


def _last_step(record: Mapping[str, Any]) -> int | None:
    return record.get("first_step") if record.get("kind") == "ranks" else _step(record)
