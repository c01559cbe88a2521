"""`--resume auto`: find the run of a name, or reserve a folder for a new one; of several processes, one trains it."""

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from paceline.core.config import Config
from paceline.core.errors import InUseError, PacelineError, RunError
from paceline.core.messages import say_if_slow
from paceline.core.metrics import Scores
from paceline.records.attempt import choosing_run, claim_run, is_claimed
from paceline.records.entries import RunResult, State
from paceline.records.folder import RunFolder, list_runs_below, make_numbered, newest_run
from paceline.records.reader import EVAL_FACTS, read_metrics, summarise

AUTO = "auto"
PART_OF_TIMEOUT = 0.8
"""The lead waits for another process no longer than the other ranks wait for the lead."""
SECONDS_BETWEEN_LOOKS = 0.5


def is_auto(resume: Path | str | None) -> bool:
    """Tell whether --resume names no run, but asks for the newest of the run's name."""
    return resume is not None and str(resume) == AUTO


def find_or_reserve(config: Config, *, timeout: float, restarted: bool = False) -> RunFolder:
    """Return the newest run of the name, claimed, or a reserved folder without a run. Only the lead calls it.

    While another process trains the run, wait: its heartbeat on another host may be minutes old. A restarted rank does
    not wait, because the earlier attempt of its own launch may still be running, cut off from the others.
    """
    parent = config.runs_dir / config.run_name
    deadline = time.monotonic() + PART_OF_TIMEOUT * timeout
    notice = f"another process trains {parent}; waiting up to {PART_OF_TIMEOUT * timeout:g} s until it ends"
    with say_if_slow(notice):
        while True:
            try:
                return _claimed(parent, restarted=restarted)
            except InUseError as problem:
                if time.monotonic() > deadline:
                    raise PacelineError(problem.message, hint="to train another run, add --name NAME") from problem
            time.sleep(SECONDS_BETWEEN_LOOKS)


def release(folder: RunFolder) -> None:
    """Remove a reserved folder in which no run was started."""
    if not folder.is_run:
        with suppress(OSError):
            folder.attempt.unlink(missing_ok=True)
            folder.path.rmdir()


def finished_result(folder: RunFolder) -> RunResult:
    """Return the result of a run that has finished, as far as its records tell it."""
    tests = [line for line in read_metrics(folder) if line["kind"] == "eval" and line["split"] == "test"]
    summary = summarise(folder)
    return RunResult(
        folder=folder.path,
        state=State.FINISHED,
        step=summary.step,
        epochs=summary.epochs,
        best=None if summary.best is None else _scores(summary.best),
        test=_scores(tests[-1]) if tests else None,
        test_step=tests[-1]["step"] if tests else None,
        seconds=0.0,
    )


def _scores(values: Mapping[str, Any]) -> Scores:
    names = [name for name in values if name not in EVAL_FACTS | {"samples"}]
    return Scores(by_name={name: values[name] for name in names}, samples=values["samples"])


def _claimed(parent: Path, *, restarted: bool) -> RunFolder:
    """Return the run or a new folder. The lock makes two processes take the same one, which one of them claims."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise RunError(f"cannot write to {parent}: {cause.strerror}", hint="choose another --runs-dir") from cause
    with choosing_run(parent):
        found = list_runs_below(parent)
        if found:
            folder = newest_run(found)
        else:
            starting = [folder for folder in map(RunFolder, parent.iterdir()) if is_claimed(folder)]
            folder = starting[0] if starting else RunFolder(make_numbered(parent))
        if not restarted:
            claim_run(folder)
        return folder
