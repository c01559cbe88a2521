"""Writing files so that a reader never sees half of one."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.core.world import World
from paceline.records.entries import State


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a scratch path beside `path`; when the block ends well, it takes the place of `path`, durably."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield scratch
        with scratch.open("rb") as written:
            os.fsync(written.fileno())
        scratch.replace(path)
        _sync_folder(path.parent)
    finally:
        scratch.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file as a whole."""
    with replacing(path) as scratch:
        scratch.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def write_rank(path: Path, world: World, state: State, **facts: Any) -> None:
    """Say where a rank stands. Readers see the old or the new state, never a mixture."""
    scratch = path.with_name(f".{path.name}.{world.pid}.partial")
    line = {
        "state": state,
        "rank": world.rank,
        "world_size": world.size,
        "host": world.host,
        "pid": world.pid,
        "told_by": world.told_by,
        "time": time.time(),
    } | facts
    scratch.write_text(json.dumps(line) + "\n", encoding="utf-8")
    scratch.replace(path)


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
