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

SECONDS_OF_CLOCK_DRIFT = 10
SECONDS_BELIEVED = 120
"""A rank writes its file every second; hosts' clocks differ, and shared disks lag."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSummary:
    """A run in one line."""

    folder: RunFolder
    config: Config
    started: float
    state: str
    step: int
    epochs: int
    best: dict[str, Any] | None
    """The best evaluation: loss, top1, top5, epoch, images scored, and images in the split (split_images)."""
    test: dict[str, Any] | None
    images_per_s: float | None
    detail: str


def read_rank(path: Path) -> dict[str, Any] | None:
    """Return the state file of a rank, or None when it is missing or torn."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def run_state(folder: RunFolder) -> str:
    """Return the lead's state; a rank that says it trains but whose process is gone is LOST."""
    lead = read_rank(folder.rank(0))
    if lead is None:
        return "LOST"
    return lead["state"] if State(lead["state"]).is_final or is_alive(lead) else "LOST"


def is_alive(rank: dict[str, Any]) -> bool:
    """Tell whether the process of a rank still runs; on another host we believe it while its file is fresh."""
    if rank["host"] != socket.gethostname():
        return time.time() - rank["time"] < SECONDS_BELIEVED
    try:
        process = psutil.Process(rank["pid"])
        is_newer = process.create_time() > rank["time"] + SECONDS_OF_CLOCK_DRIFT  # the number was given to another
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
                yield json.loads(line)
            except ValueError:
                continue


def summarise(folder: RunFolder) -> RunSummary:
    """Read a run folder into one line."""
    if not folder.is_run:
        raise RunError(f"{folder.path} is not a run: it has no config.toml", hint="paceline runs lists the runs")
    best, test, epochs, step, speed = None, None, 0, 0, None
    for record in read_metrics(folder):
        step = max(step, record.get("step", 0))
        if record["kind"] == "epoch":
            epochs, speed = record["epoch"], record["images_per_s"]
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
        images_per_s=speed,
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
    """Return the surroundings of every start of a run, the first one first."""
    try:
        return json.loads(folder.environment.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []


def _started(folder: RunFolder) -> float:
    environments = read_environments(folder)
    return environments[0]["time"] if environments else folder.config.stat().st_mtime


def _evaluation(record: dict[str, Any]) -> dict[str, Any] | None:
    """Return the score on held-out images that a record carries."""
    prefix = {"epoch": "valid_", "eval": ""}.get(record["kind"])
    if prefix is None or f"{prefix}top1" not in record:
        return None
    score = {key: record[prefix + key] for key in ("loss", "top1", "top5", "images")}
    return score | {"split_images": record.get("split_images", score["images"]), "epoch": record["epoch"]}
