"""A file of lines on a disk that may be full for a while: lines wait in memory until there is room again."""

import os
from pathlib import Path

MOST_PENDING = 1 << 24
"""Bytes that may wait; the lines after them are lost."""


class LineFile:
    """Appends lines to a file; after an error, the next line is written after the pending ones."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._pending = bytearray()

    def write(self, line: str) -> None:
        """Append a line, visible at once; raises OSError while the disk is full, and keeps the line."""
        if len(self._pending) < MOST_PENDING:
            self._pending += (line + "\n").encode(errors="replace")
        self.flush()

    def flush(self) -> None:
        """Write the lines that wait; raises OSError while the disk is full."""
        while self._pending:
            del self._pending[: os.write(self._handle, self._pending)]

    def close(self) -> None:
        """Write the lines that wait, and close the file; while the disk is full they are lost."""
        try:
            self.flush()
        finally:
            os.close(self._handle)
