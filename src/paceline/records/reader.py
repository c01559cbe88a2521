"""Reading run folders back: the state of a run, its records, the list of all runs."""

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from paceline.core.config import Config
from paceline.core.errors import PacelineError, RunError
from paceline.core.load import load_config
from paceline.records.entries import State
from paceline.records.folder import RunFolder, list_runs_below
from paceline.records.old_keys import rename_old_keys

SECONDS_OF_CLOCK_DRIFT = 10
SECONDS_BELIEVED = 120
"""Seconds without an update until a rank counts as lost: it writes every second, but clocks differ and disks lag."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """The summary of a run."""

    folder: RunFolder
    config: Config
    started: float
    state: str
    step: int
    epochs: int
    best: dict[str, Any] | None
    """The best evaluation: loss, top1, top5, epoch, samples scored, and samples in the split (split_samples)."""
    test: dict[str, Any] | None
    samples_per_s: float | None
    detail: str


def read_rank(path: Path) -> dict[str, Any] | None:
    """Return the state file of a rank, or None when it is missing or torn."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def run_state(folder: RunFolder) -> str:
    """Return the lead's state; LOST if its file says training but its process has exited."""
    lead = read_rank(folder.rank(0))
    if lead is None:
        return "LOST"
    return lead["state"] if State(lead["state"]).is_final or is_alive(lead) else "LOST"


def is_alive(rank: dict[str, Any]) -> bool:
    """Tell whether the process of a rank still runs; on another host, whether its file is recent."""
    if rank["host"] != socket.gethostname():
        return time.time() - rank["time"] < SECONDS_BELIEVED
    try:
        process = psutil.Process(rank["pid"])
        is_newer = process.create_time() > rank["time"] + SECONDS_OF_CLOCK_DRIFT  # the pid was reused
        return process.status() != psutil.STATUS_ZOMBIE and not is_newer
    except psutil.NoSuchProcess:
        return False


def read_metrics(folder: RunFolder) -> Iterator[dict[str, Any]]:
    """Yield the records of a run; a last line that was cut off by a crash is left out."""
    if not folder.metrics.is_file():
        return
    with folder.metrics.open(encoding="utf-8") as lines:
        for line in lines:
            try:
                yield rename_old_keys(json.loads(line))
            except (ValueError, AttributeError):
                continue


def summarise(folder: RunFolder) -> RunSummary:
    """Summarise a run folder."""
    if not folder.is_run:
        raise RunError(f"{folder.path} is not a run: it has no config.toml", hint="to list the runs: paceline runs")
    best, test, epochs, step, speed = None, None, 0, 0, None
    for record in read_metrics(folder):
        step = max(step, record.get("step", 0))
        if record["kind"] == "epoch":
            epochs, speed = record["epoch"], record["samples_per_s"]
        score = _evaluation(record)
        if score is not None and record.get("is_best"):
            best = score
        if record["kind"] == "eval" and record["split"] == "test":
            test = score
    lead = read_rank(folder.rank(0)) or {}
    return RunSummary(
        folder=folder,
        config=load_config(folder.config),
        started=_started(folder),
        state=run_state(folder),
        step=max(step, lead.get("step", 0)),
        epochs=epochs,
        best=best,
        test=test,
        samples_per_s=speed,
        detail=lead.get("detail", ""),
    )


def list_runs(runs_dir: Path) -> list[RunSummary]:
    """Return all runs below a folder, the newest last; a folder that cannot be read is left out."""
    parents = sorted(path for path in runs_dir.iterdir() if path.is_dir()) if runs_dir.is_dir() else []
    runs = []
    for folder in [folder for parent in parents for folder in list_runs_below(parent)]:
        try:
            runs.append(summarise(folder))
        except (PacelineError, OSError):
            continue
    return sorted(runs, key=lambda run: (run.started, run.folder.path))


def read_environments(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the environment of every start of a run, the earliest first."""
    try:
        starts = json.loads(folder.environment.read_text(encoding="utf-8"))
        return [rename_old_keys(start) for start in starts]
    except (OSError, ValueError, TypeError, AttributeError):
        return []


def _started(folder: RunFolder) -> float:
    environments = read_environments(folder)
    return environments[0]["time"] if environments else folder.config.stat().st_mtime


def _evaluation(record: dict[str, Any]) -> dict[str, Any] | None:
    """Return the score on held-out samples in a record."""
    prefix = {"epoch": "valid_", "eval": ""}.get(record["kind"])
    if prefix is None or f"{prefix}top1" not in record:
        return None
    score = {key: record[prefix + key] for key in ("loss", "top1", "top5", "samples")}
    return score | {"split_samples": record.get("split_samples", score["samples"]), "epoch": record["epoch"]}
