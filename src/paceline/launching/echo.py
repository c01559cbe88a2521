"""Showing what ranks print where this process prints, also where that is no file, as in a notebook."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

SECONDS_TO_END = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where ranks print to."""

    stdout: int | None
    """The file to give them; None for the one they inherit."""
    stderr: str
    """The path that a rank opens in place of what torchrun makes of its stderr."""


@contextmanager
def place_to_print() -> Iterator[Place]:
    """Give ranks our own stdout and stderr, or a pipe whose lines are printed here."""
    if sys.stdout is sys.__stdout__:
        yield Place(stdout=None, stderr=f"/proc/{os.getpid()}/fd/2")
        return
    reading, writing = os.pipe()
    with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
        thread = threading.Thread(target=_copy, args=(lines, sys.stdout), name="echo", daemon=True)
        thread.start()
        try:
            yield Place(stdout=writing, stderr="/proc/self/fd/1")
        finally:
            os.close(writing)
            thread.join(SECONDS_TO_END)


def _copy(lines: TextIO, shown: TextIO) -> None:
    for line in lines:
        shown.write(line)
        shown.flush()
