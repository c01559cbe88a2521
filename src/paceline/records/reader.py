"""Reading run folders back: the state of a run, its records, the list of all runs."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil

from paceline.core.config import Config
from paceline.core.errors import RunError
from paceline.core.load import load_written
from paceline.core.processes import process_start
from paceline.records.entries import State
from paceline.records.folder import RunFolder
from paceline.records.old_keys import rename_old_keys
from paceline.records.schema import Environment, RankState, file_lines, fits, parse_json, parse_metric, read_as

SECONDS_OF_CLOCK_DRIFT = 10
EVAL_FACTS = frozenset({"kind", "step", "epoch", "split", "is_best", "seconds", "split_samples", "time"})
"""Keys of an evaluation that are not scores."""
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
    """The best evaluation: loss, metrics, epoch, samples scored, samples in the split (split_samples)."""
    test: dict[str, Any] | None
    samples_per_s: float | None
    detail: str
    seconds: float | None = None
    """Wall time of all its starts that ended orderly, start-up included."""
    cpu_seconds: float | None = None
    """CPU time of their ranks."""
    epoch_seconds: float | None = None
    """Training time of its last epoch, without evaluation and checkpoints."""

    @property
    def trained(self) -> tuple[str, str]:
        """The names of the model and of the data; a loop of the user has its own, whose names nobody knows."""
        return (self.config.model, self.config.data) if self.config.loop is None else (self.config.loop, "own data")


def read_rank(path: Path) -> dict[str, Any] | None:
    """Return the state file of a rank, or None when it is missing or torn."""
    found = read_as(RankState, path)
    return None if found is None else {"step": 0, "doing": "", "detail": ""} | found


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
    if rank.get("pid_start") is not None:
        return process_start(rank["pid"]) == rank["pid_start"]
    try:  # a file of an earlier version
        process = psutil.Process(rank["pid"])
        is_newer = process.create_time() > rank["time"] + SECONDS_OF_CLOCK_DRIFT  # the pid was reused
        return process.status() != psutil.STATUS_ZOMBIE and not is_newer
    except psutil.NoSuchProcess:
        return False


def read_metrics(folder: RunFolder) -> Iterator[dict[str, Any]]:
    """Yield the records of a run; a line that a crash cut off or damaged is left out."""
    for line in file_lines(folder.metrics):
        with suppress(ValueError):
            yield parse_metric(line)


def read_config(folder: RunFolder) -> Config:
    """Return the settings of a run. Runs of versions without --sample-order were shuffled with argsort."""
    config, given = load_written(folder.config)
    return config if "sample_order" in given else replace(config, sample_order="argsort")


def summarise(folder: RunFolder, see: Callable[[dict[str, Any]], None] = lambda _record: None) -> RunSummary:
    """Summarise a run folder, and let `see` see every record, so that a long file is read once."""
    if not folder.is_run:
        raise RunError(f"{folder.path} is not a run: it has no config.toml", hint="to list the runs: paceline runs")
    best, test, epochs, step, speed, epoch_seconds = None, None, 0, 0, None, None
    for record in read_metrics(folder):
        see(record)
        step = max(step, record.get("step", 0))
        if record["kind"] == "epoch":
            epochs, speed = record["epoch"], record["samples_per_s"]
            epoch_seconds = record["train_samples"] / speed if speed and "train_samples" in record else None
        score = _evaluation(record)
        if score is not None and record.get("is_best"):
            best = score
        if record["kind"] == "eval" and record["split"] == "test":
            test = score
    lead = read_rank(folder.rank(0)) or {}
    starts = read_environments(folder)
    return RunSummary(
        folder=folder,
        config=read_config(folder),
        started=starts[0]["time"] if starts else folder.config.stat().st_mtime,
        state=run_state(folder),
        step=max(step, lead.get("step", 0)),
        epochs=epochs,
        best=best,
        test=test,
        samples_per_s=speed,
        detail=lead.get("detail", ""),
        seconds=_total(starts, "seconds"),
        cpu_seconds=_total(starts, "cpu_seconds"),
        epoch_seconds=epoch_seconds,
    )


def read_environments(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the environment of every start of a run, the earliest first."""
    try:
        starts = parse_json(folder.environment.read_bytes())
    except (OSError, ValueError):
        return []
    found = [rename_old_keys(start) for start in starts if isinstance(start, dict)] if isinstance(starts, list) else []
    return [start for start in found if fits(start, Environment)]


def _total(starts: list[dict[str, Any]], key: str) -> float | None:
    """Return a sum over the starts that have the value; None if none has."""
    values = [start[key] for start in starts if key in start]
    return sum(values) if values else None


def _evaluation(record: dict[str, Any]) -> dict[str, Any] | None:
    """Return the score on held-out samples in a record."""
    prefix = {"epoch": "valid_", "eval": ""}.get(record["kind"])
    if prefix is None or f"{prefix}samples" not in record:
        return None
    names = [key.removeprefix(prefix) for key in record if key.startswith(prefix) and key not in EVAL_FACTS]
    score = {name: record[prefix + name] for name in names if fits(record[prefix + name], float)}
    return score | {"split_samples": record.get("split_samples", score["samples"]), "epoch": record["epoch"]}
