"""The attempt that may write to a run folder: it refuses a second one, and a newer one makes its writes fail."""

import errno
import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from paceline.core.errors import InUseError, OvertakenError, RunError
from paceline.core.messages import say_if_slow
from paceline.core.processes import process_start
from paceline.records.entries import Note, State
from paceline.records.folder import RunFolder, name_lock
from paceline.records.reader import is_alive, read_rank
from paceline.records.schema import Owner, parse_as

SECONDS_TO_LOCK, SECONDS_BETWEEN_TRIES = 30.0, 0.05
UNSUPPORTED = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}
"""Errors of flock on file systems without locks."""


def claim_run(folder: RunFolder) -> None:
    """Claim a run before resuming it, unless another process trains it: of two at the same moment, one is refused."""
    with folder.attempt.open("a+", encoding="utf-8", errors="replace") as file:
        _lock(file, fcntl.LOCK_EX)
        owner = _owner(file, folder)
        if owner is not None:
            raise InUseError(
                f"{folder.path} is in use by process {owner['pid']} on {owner['host']}",
                hint="stop it first, or wait until it ends",
            )
        _write(file, secrets.token_hex(8))


@contextmanager
def choosing_run(parent: Path, *, patience: float | None = None) -> Iterator[None]:
    """Hold off other processes that choose one of the runs below a name, start one, or copy one to this machine."""
    with name_lock(parent).open("a+", encoding="utf-8") as file:
        with say_if_slow(f"waiting for another process, which holds {file.name}"):
            _lock(file, fcntl.LOCK_EX, patience)
        yield


def is_claimed(folder: RunFolder) -> bool:
    """Tell whether another process is about to start a run in a folder."""
    try:
        with folder.attempt.open(encoding="utf-8", errors="replace") as file:
            return _owner(file, folder) is not None
    except OSError:
        return False


def take_over(folder: RunFolder) -> RunFolder:
    """Start a new attempt: return the folder with its token, and make the writes of all earlier attempts fail.

    After a restart, ranks of the earlier attempt may still be running, cut off from the others.
    """
    with folder.attempt.open("a+", encoding="utf-8", errors="replace") as file:
        _lock(file, fcntl.LOCK_EX)
        token = secrets.token_hex(8)
        _write(file, token)
    return replace(folder, token=token)


@contextmanager
def fenced(folder: RunFolder) -> Iterator[None]:
    """Hold off newer attempts while the block replaces a file of the run; refuse if one has already started.

    Where the file system has no locks, an attempt that starts at that very moment is not held off.
    """
    if folder.token is None:
        yield
        return
    with folder.attempt.open(encoding="utf-8", errors="replace") as file:
        _lock(file, fcntl.LOCK_SH)
        if _read(file).get("token") != folder.token:
            raise OvertakenError(
                f"{folder.path} is continued by a newer attempt, so this one no longer writes to it",
                hint="nothing to do: this process was cut off from the other ranks",
            )
        yield


def has_locks(folder: RunFolder) -> bool:
    """Tell whether the file system of a run supports locks."""
    with folder.attempt.open("a+", encoding="utf-8") as file:
        return _lock(file, fcntl.LOCK_SH)


def unlocked_note(folder: RunFolder) -> list[Note]:
    """Return a warning if the file system of a run has no locks."""
    if has_locks(folder):
        return []
    text = f"the file system of {folder.path} has no locks (flock): do not resume the run twice at the same moment"
    return [Note(text=text, level="warning")]


def sees_attempt(folder: RunFolder) -> bool:
    """Tell whether this process sees the folder of the attempt, not another folder of the same name."""
    try:
        with folder.attempt.open(encoding="utf-8", errors="replace") as file:
            return _read(file).get("token") == folder.token
    except OSError:
        return False


def _lock(file: IO[str], kind: int, patience: float | None = None) -> bool:
    """Lock a file until it is closed, and return True; return False where the file system has no locks."""
    patience = SECONDS_TO_LOCK if patience is None else patience
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError as cause:
            if time.monotonic() > deadline:
                raise _cannot_lock(file, patience) from cause
            time.sleep(SECONDS_BETWEEN_TRIES)
        except OSError as cause:
            if cause.errno in UNSUPPORTED:
                return False
            raise
        else:
            return True


def _cannot_lock(file: IO[str], patience: float) -> RunError:
    owner = _read(file)
    who = f"process {owner['pid']} on {owner['host']}" if owner else "another process"
    return RunError(
        f"{file.name} is still locked after {patience:g} seconds; {who} used it last",
        hint="a process that is stopped or hangs keeps the lock: end it, then try again",
    )


def _owner(file: IO[str], folder: RunFolder) -> dict[str, Any] | None:
    """Return the living process that trains the run or is about to; None if there is none."""
    lead = read_rank(folder.rank(0))
    if lead is not None and not State(lead["state"]).is_final and is_alive(lead):
        return lead
    owner = _read(file)
    if not owner or (owner["host"], owner["pid"]) == (socket.gethostname(), os.getpid()):
        return None
    has_ended = lead is not None and State(lead["state"]).is_final and lead["time"] > owner["time"]
    return owner if not has_ended and is_alive(owner) else None


def _read(file: IO[str]) -> dict[str, Any]:
    file.seek(0)
    try:
        return parse_as(Owner, file.read())
    except ValueError:
        return {}


def _write(file: IO[str], token: str) -> None:
    pid = os.getpid()
    owner = {"token": token, "host": socket.gethostname(), "pid": pid, "pid_start": process_start(pid)}
    file.truncate(0)
    file.write(json.dumps(owner | {"time": time.time()}) + "\n")
    file.flush()
