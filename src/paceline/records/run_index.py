"""The index of a folder of runs: summaries of runs whose files have not changed need not be computed again."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

from paceline.core.config import Config
from paceline.core.errors import PacelineError
from paceline.records.entries import State
from paceline.records.folder import RunFolder, index_of_runs
from paceline.records.reader import RunSummary, run_state, summarise
from paceline.records.schema import Count, Moment, fits, parse_json
from paceline.records.writer import replacing

VERSION = 2
LEAST_INDEXED = 200
"""The number of runs from which an index is written: reading fewer takes less than half a second."""

Stamp = list[int]
"""Time of change and size of each file that a summary depends on."""


class IndexedSummary(TypedDict):
    """A summary as JSON values."""

    config: dict[str, Any]
    started: Moment
    state: str
    step: Count
    epochs: Count
    best: dict[str, float | str | bool | None] | None
    test: dict[str, float | str | bool | None] | None
    samples_per_s: float | None
    detail: str
    seconds: float | None
    cpu_seconds: float | None
    epoch_seconds: float | None


class IndexEntry(TypedDict):
    """A summary, with the stamp of the files that it was computed from."""

    stamp: Stamp
    summary: IndexedSummary


@dataclass(slots=True)
class RunIndex:
    """The entries of runs by folder, as they were read."""

    path: Path
    known: Mapping[str, Any]
    used: dict[str, Any] = field(default_factory=dict)
    has_new: bool = False

    @classmethod
    def read(cls, runs_dir: Path) -> "RunIndex":
        """Read the index; a missing, damaged or earlier one is empty."""
        path = index_of_runs(runs_dir)
        with suppress(OSError, ValueError):
            values = parse_json(path.read_bytes())
            if isinstance(values, dict) and values.get("version") == VERSION and isinstance(values.get("runs"), dict):
                return cls(path, values["runs"])
        return cls(path, {})

    def summary(self, folder: RunFolder) -> RunSummary:
        """Return the summary of a run, from the index if none of its files has changed."""
        stamp, name = _stamp(folder), str(folder.path)
        entry = self.known.get(name)
        summary = _restored(entry, folder) if _is_of(entry, stamp) else None
        if summary is not None:
            self.used[name] = entry
            is_over = summary.state in State.__members__ and State(summary.state).is_final
            # else its process may have exited without a change of its files
            return summary if is_over else replace(summary, state=run_state(folder))
        summary = summarise(folder)
        values = asdict(summary) | {"folder": None, "config": summary.config.as_dict()}
        self.used[name] = {"stamp": stamp, "summary": values}
        self.has_new = True
        return summary

    def write(self) -> None:
        """Write the index if it is worth it and has changed; a folder that cannot be written has none."""
        if len(self.used) < LEAST_INDEXED or not (self.has_new or len(self.used) != len(self.known)):
            return
        with suppress(OSError), replacing(self.path, durable=False) as scratch:
            scratch.write_text(json.dumps({"version": VERSION, "runs": self.used}), encoding="utf-8")


def list_runs(runs_dir: Path) -> list[RunSummary]:
    """Return all runs below a folder, the newest last; a folder that cannot be read is left out."""
    index, runs = RunIndex.read(runs_dir), []
    for folder in _run_folders(runs_dir):
        with suppress(PacelineError, OSError):
            runs.append(index.summary(folder))
    index.write()
    return sorted(runs, key=lambda run: (run.started, run.folder.path))


def _is_of(entry: Any, stamp: Stamp) -> bool:
    return fits(entry, IndexEntry) and entry["stamp"] == stamp


def _restored(entry: Any, folder: RunFolder) -> RunSummary | None:
    """Return the summary of an entry; None if it does not have the settings of this version."""
    with suppress(KeyError, TypeError, ValueError, PacelineError):
        config = Config.from_dict(entry["summary"]["config"])
        return RunSummary(**entry["summary"] | {"folder": folder, "config": config})
    return None


def _run_folders(runs_dir: Path) -> list[RunFolder]:
    """Return the folders two levels below that may be runs, without a look at their files."""
    parents = [entry.path for entry in _folders(runs_dir)]
    return [RunFolder(Path(entry.path)) for parent in sorted(parents) for entry in _folders(Path(parent))]


def _folders(path: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return [entry for entry in entries if entry.is_dir()]
    except OSError:
        return []


def _stamp(folder: RunFolder) -> Stamp:
    stamp: Stamp = []
    for name in NAMES:
        try:
            found = os.stat(f"{folder.path}/{name}")  # noqa: PTH116 - a third of the time of pathlib
            stamp += [found.st_mtime_ns, found.st_size]
        except OSError:
            stamp += [0, 0]
    return stamp


_ANY = RunFolder(Path())
NAMES = [str(path) for path in (_ANY.config, _ANY.environment, _ANY.metrics, _ANY.rank(0))]
