"""The records that every run keeps: metrics.jsonl and phases.jsonl for programs, log.txt for people."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from paceline.records.entries import Entry, EpochRecord, EvalRecord, Note, Pulse, RunResult, StepRecord, record_as_json
from paceline.records.folder import RunFolder
from paceline.records.phases import PhaseRecord, RankFacts, phases_as_json, read_phases
from paceline.records.reader import read_metrics
from paceline.records.writer import replacing
from paceline.trackers.base import RunInfo
from paceline.trackers.lines import as_line

RANKS_PER_STEP = 20
"""An interval of phases.jsonl covers at least one step per 20 ranks."""

NAMES = RunFolder(Path())
"""Used only for the names of files."""


class JsonLines:
    """One JSON object per record; after a resume, records of steps that were lost are dropped first."""

    name = NAMES.metrics.name

    def __init__(self) -> None:
        self._file: TextIO

    def open(self, run: RunInfo) -> None:
        """Continue the file at the step that the run continues from."""
        if run.folder.metrics.exists():
            _drop_lost(run)
        self._file = _append(run.folder.metrics)

    def record(self, entry: Entry) -> None:
        """Append one line, visible at once."""
        if isinstance(entry, StepRecord | EpochRecord | EvalRecord):
            self._file.write(json.dumps(record_as_json(entry)) + "\n")
            self._file.flush()

    def close(self, result: RunResult | None) -> None:
        """Close the file."""
        self._file.close()


class PhaseLines:
    """The phases of every rank, in a separate file.

    With many ranks intervals are longer, so that ten thousand steps of a thousand ranks can be read in seconds.
    """

    name = NAMES.phases.name

    def __init__(self) -> None:
        self._file: TextIO
        self._pending: PhaseRecord | None = None

    def open(self, run: RunInfo) -> None:
        """Continue the file at the step that the run continues from."""
        path = run.folder.phases
        if path.exists():
            kept = [entry for entry in read_phases(run.folder) if _last_step(entry) <= run.first_step]
            _replace(path, [phases_as_json(entry) for entry in kept])
        self._file = _append(path)

    def record(self, entry: Entry) -> None:
        """Append one line, visible at once, when the interval is long enough."""
        if isinstance(entry, RankFacts):
            self._write(entry)
        elif isinstance(entry, PhaseRecord):
            is_end = entry.steps == 0
            if self._pending is not None and not is_end:
                entry, self._pending = self._pending + entry, None
            if is_end or entry.steps * RANKS_PER_STEP >= len(entry.seconds):
                self._flush()
                self._write(entry)
            else:
                self._pending = entry

    def close(self, result: RunResult | None) -> None:
        """Close the file."""
        self._flush()
        self._file.close()

    def _flush(self) -> None:
        if self._pending is not None:
            self._write(self._pending)
            self._pending = None

    def _write(self, entry: RankFacts | PhaseRecord) -> None:
        self._file.write(json.dumps(phases_as_json(entry)) + "\n")
        self._file.flush()


class LogFile:
    """The lines of the terminal, as a file."""

    name = NAMES.log.name

    def __init__(self) -> None:
        self._file: TextIO
        self._run: RunInfo

    def open(self, run: RunInfo) -> None:
        """Append to the lines of earlier attempts."""
        self._run = run
        self._file = _append(run.folder.log)

    def record(self, entry: Entry) -> None:
        """Append the record's line."""
        line = None if isinstance(entry, Pulse) else as_line(entry, self._run)
        if line is not None:
            self._file.write(line + "\n")
            if isinstance(entry, Note | EpochRecord):
                self._file.flush()

    def close(self, result: RunResult | None) -> None:
        """Close the file."""
        self._file.close()


def _drop_lost(run: RunInfo) -> None:
    kept = [record for record in read_metrics(run.folder) if record.get("step", 0) <= run.first_step]
    _replace(run.folder.metrics, kept)


def _last_step(entry: RankFacts | PhaseRecord) -> int:
    return entry.first_step if isinstance(entry, RankFacts) else entry.step


def _replace(path: Path, records: Sequence[dict[str, Any]]) -> None:
    with replacing(path) as scratch:
        scratch.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def _append(path: Path) -> TextIO:
    return path.open("a", encoding="utf-8")
