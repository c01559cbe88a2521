"""Removing run folders: never one that a process trains, and never anything that is not a run."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from paceline.core.errors import InUseError, RunError
from paceline.records.attempt import is_claimed
from paceline.records.entries import State
from paceline.records.folder import RunFolder, find_run, list_runs_below
from paceline.records.reader import run_state


@dataclass(frozen=True, kw_only=True, slots=True)
class Removal:
    """A run folder that may be removed."""

    folder: RunFolder
    state: str
    num_bytes: int


def find_only_run(path: Path, runs_dir: Path) -> RunFolder:
    """Return the run of a path, or of a name that has only one: which of several is meant is never guessed."""
    found = find_run(path, runs_dir)
    if found.path in {path, runs_dir / path}:
        return found
    others = list_runs_below(found.path.parent)
    if len(others) > 1:
        numbers = " ".join(sorted(folder.name for folder in others))
        raise RunError(f"there are {len(others)} runs of the name {path}", hint=f"name the ones to remove: {numbers}")
    return found


def plan_removal(folder: RunFolder) -> Removal:
    """Return what the removal of a run would remove; refuse a run that is being trained."""
    state = run_state(folder)
    if state in {State.TRAINING, State.READY} or is_claimed(folder):
        raise InUseError(f"{folder.path} is being trained", hint="stop it first: Ctrl-C where it runs")
    files = [path for path in folder.path.rglob("*") if path.is_file() and not path.is_symlink()]
    return Removal(folder=folder, state=state, num_bytes=sum(path.stat().st_size for path in files))


def remove_run(folder: RunFolder) -> None:
    """Remove a run folder, and the folder of its name if that is empty then."""
    try:
        shutil.rmtree(folder.path)
        left = list(folder.path.parent.iterdir())
        if all(path.name == ".lock" for path in left):
            shutil.rmtree(folder.path.parent)
    except OSError as cause:
        raise RunError(f"cannot remove {folder.path}: {cause.strerror}") from cause
