"""The process between the launcher and torchrun: it ends every process below it, also when the launcher was killed."""

import os
import signal
import time
from contextlib import suppress
from typing import NoReturn

import psutil

from paceline.core.processes import adopt_orphans, end_with_parent

SECONDS_TO_STOP = 45
"""Time for ranks to save after SIGTERM; torchrun kills ranks that hang after 30 s."""
SECONDS_TO_END = 5.0
STOPPING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def become_reaper() -> None:
    """Continue in a child process; this one waits for it and for all processes below, and exits with its code.

    Processes below stay below when their parents exit, also those in another session. When the child has
    exited, or is late after a signal, all of them are killed, stopped ones too.
    """
    adopt_orphans()
    reaper = os.getpid()
    child = os.fork()
    if child == 0:
        end_with_parent(parent=reaper)
        return
    _reap(child)


def end_descendants(pid: int) -> None:
    """Kill every process below this one, and wait until they have ended."""
    deadline = time.monotonic() + SECONDS_TO_END
    while (below := living_descendants(pid)) and time.monotonic() < deadline:  # more may start in the meantime
        for process in below:
            send(process, signal.SIGKILL)
        time.sleep(0.05)  # not psutil.wait_procs, which would take the exit status of a child from its parent


def living_descendants(pid: int) -> list[psutil.Process]:
    """Return the processes below this one that have not ended."""
    with suppress(psutil.NoSuchProcess):
        return [process for process in psutil.Process(pid).children(recursive=True) if _lives(process)]
    return []


def send(process: psutil.Process, number: signal.Signals) -> None:
    """Send a signal to a process that may have ended, or may belong to another user."""
    with suppress(psutil.Error):
        process.send_signal(number)


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def _reap(child: int) -> NoReturn:
    waited = STOPPING | {signal.SIGCHLD}
    signal.pthread_sigmask(signal.SIG_BLOCK, waited | {signal.SIGUSR1})
    deadline = None
    while (status := _ended(child)) is None:
        answer = signal.sigtimedwait(waited, 1.0)
        if answer is not None and answer.si_signo in STOPPING and deadline is None:
            deadline = time.monotonic() + SECONDS_TO_STOP
            os.kill(child, signal.SIGTERM)
        if deadline is not None and time.monotonic() > deadline:
            end_descendants(os.getpid())
    end_descendants(os.getpid())
    _exit_like(status)


def _ended(child: int) -> int | None:
    """Return the wait status of the child once it has ended; other processes that ended are removed too."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in {0, child}:
            return status if pid == child else None


def _exit_like(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
