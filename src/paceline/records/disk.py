"""What a folder can do: locks, replacing a file in one step, and how fast what is written is safe."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

BLOCK = bytes(1 << 20)
NUM_BLOCKS = 16


def file_system(path: Path) -> str:
    """Return the kind of file system that a folder is on, such as ext4 or nfs4."""
    whole = path.resolve()
    mounts = [part for part in psutil.disk_partitions(all=True) if whole.is_relative_to(part.mountpoint)]
    return max(mounts, key=lambda part: len(part.mountpoint)).fstype if mounts else "unknown"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock on a file."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def is_locked(path: Path) -> bool:
    """Tell whether someone else holds the lock of a file."""
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        return False


def can_replace(folder: Path, name: str) -> bool:
    """Tell whether a file can be swapped for another in one step."""
    target, scratch = folder / name, folder / f"{name}.new"
    target.write_bytes(b"old")
    scratch.write_bytes(b"new")
    scratch.replace(target)
    is_new = target.read_bytes() == b"new" and not scratch.exists()
    target.unlink()
    return is_new


def time_sync(folder: Path, name: str, *, repeats: int = 5) -> float:
    """Return the seconds until a small file is safe on disk, the median of a few."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        _write(folder / name, b"x", 1)
        seconds.append(time.perf_counter() - start)
    (folder / name).unlink()
    return sorted(seconds)[repeats // 2]


def time_writing(folder: Path, name: str) -> float:
    """Return the bytes a second at which a file of some megabytes becomes safe on disk."""
    start = time.perf_counter()
    _write(folder / name, BLOCK, NUM_BLOCKS)
    seconds = time.perf_counter() - start
    (folder / name).unlink()
    return len(BLOCK) * NUM_BLOCKS / seconds


def _write(path: Path, block: bytes, number: int) -> None:
    with path.open("wb") as file:
        for _ in range(number):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
