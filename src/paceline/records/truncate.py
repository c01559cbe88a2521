"""Cuts the records of lost steps off a file, read from its end: the time does not depend on the length of the run."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

BLOCK = 1 << 16


def drop_later(
    path: Path, step: int, *, step_of: Callable[[dict[str, Any]], int | None], closes: Callable[[dict[str, Any]], bool]
) -> None:
    """Drop the records after a step, and what a crash left of a last line.

    Records are read backwards up to the first one that `closes`, which tells that all records before it are as early:
    the score of the best checkpoint is written last, but belongs to an earlier step.
    """
    with path.open("r+b") as file:
        cut, kept = file.seek(0, 2), []
        for start, line in _backwards(file):
            record = _parsed(line)
            found = None if record is None else step_of(record)
            is_kept = isinstance(found, int) and found <= step
            if is_kept and record is not None and closes(record):
                cut = start + len(line)
                break
            cut = start
            if is_kept:
                kept.append(line)
        file.truncate(cut)
        file.seek(cut)
        file.write(b"".join(reversed(kept)))


def _parsed(line: bytes) -> dict[str, Any] | None:
    """Return a record; None if the line is damaged or has no end."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _backwards(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield each line with its offset, the last one first."""
    end = file.seek(0, 2)
    tail = b""
    while end > 0:
        start = max(0, end - BLOCK)
        file.seek(start)
        block = file.read(end - start) + tail
        lines = block.splitlines(keepends=True)
        first = 0 if start == 0 else 1  # the first line may begin in the block before
        offset = start + len(block)
        for line in reversed(lines[first:]):
            offset -= len(line)
            yield offset, line
        tail = lines[0] if first and lines else b""
        end = start
