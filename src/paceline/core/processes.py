"""Processes of this machine: their identity, and how they end together with the process that started them."""

import ctypes
import os
import signal
from functools import cache
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def end_with_parent(number: signal.Signals = signal.SIGTERM, *, parent: int | None = None) -> None:
    """Ask the kernel to send this process a signal when the thread that started it exits, even by SIGKILL.

    `parent` is the process that should have started this one: if it has already exited, the signal is sent now.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(number))
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), number)


def adopt_orphans() -> None:
    """Become the parent of every process below this one whose own parent exits, instead of process 1."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def process_start(pid: int) -> str | None:
    """Return when a process started, as a text that no other process with this pid has; None if it does not run.

    A container that is restarted gives its processes the same pids again. The kernel counts from the boot of the
    machine, so changes of the clock do not matter.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in {"Z", "X"} else f"{_boot()}-{fields[18]}"


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8]
    except OSError:
        return ""
