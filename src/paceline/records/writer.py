"""Writing files atomically, and file locks between processes."""

import fcntl
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from paceline.core.world import World
from paceline.records.entries import State

Fence = Callable[[], AbstractContextManager[None]]


@contextmanager
def replacing(path: Path, *, durable: bool = True, fence: Fence = nullcontext) -> Iterator[Path]:
    """Yield a scratch path next to `path`; if the block succeeds, it atomically replaces `path`.

    If `durable`, the file also survives a power cut; that takes milliseconds. `fence` refuses or allows the replacement
    at the last moment.
    """
    scratch = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.partial")
    try:
        yield scratch
        if durable:
            with scratch.open("rb") as written:
                os.fsync(written.fileno())
        with fence():
            scratch.replace(path)
        if durable:
            sync_folder(path.parent)
    finally:
        scratch.unlink(missing_ok=True)


def write_json(path: Path, value: Any, *, fence: Fence = nullcontext) -> None:
    """Replace a JSON file atomically."""
    write_text(path, json.dumps(value, indent=2) + "\n", fence=fence)


def write_text(path: Path, text: str, *, fence: Fence = nullcontext) -> None:
    """Replace a text file atomically."""
    with replacing(path, fence=fence) as scratch:
        scratch.write_text(text, encoding="utf-8")


def write_rank(path: Path, world: World, state: State, *, fence: Fence = nullcontext, **facts: Any) -> None:
    """Write the state file of a rank. Readers see the old or the new state, never a mixture."""
    line = {
        "state": state,
        "rank": world.rank,
        "world_size": world.size,
        "host": world.host,
        "pid": world.pid,
        "pid_start": world.pid_start,
        "launcher": world.launcher,
        "time": time.time(),
    } | facts
    with replacing(path, durable=False, fence=fence) as scratch:
        scratch.write_text(json.dumps(line) + "\n", encoding="utf-8")


def sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the exclusive lock of a file, which is created if needed; wait while another process holds it."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_locked(path: Path) -> bool:
    """Tell whether another process holds the lock of a file."""
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        return False
