"""Ending processes of a launch that were stopped (SIGSTOP) and not continued: nobody else notices all of them."""

import signal
import time

import psutil

from paceline.core.messages import say
from paceline.launching.reaper import living_descendants, send

SECONDS_BETWEEN_LOOKS = 5.0
"""A look reads all of /proc, while the ranks need every core."""


class StoppedProcesses:
    """The stopped processes of a launch, each since when; a rank, torchrun or a loader worker may be among them."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._interval = min(SECONDS_BETWEEN_LOOKS, timeout / 2)
        self._since: dict[psutil.Process, float] = {}
        self._next_look = 0.0

    def end_below(self, pid: int) -> None:
        """Kill the processes below `pid`, or `pid` itself, that have been stopped for longer than the timeout.

        With restarts left, torchrun then starts the ranks again.
        """
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + self._interval
        stopped = [process for process in [*living_descendants(pid), *_itself(pid)] if _is_stopped(process)]
        self._since = {process: self._since.get(process, now) for process in stopped}
        for process, since in self._since.items():
            if now - since >= self._timeout:
                say(f"process {process.pid} was stopped (SIGSTOP) for {now - since:.0f} s, so it is killed")
                send(process, signal.SIGKILL)


def _itself(pid: int) -> list[psutil.Process]:
    try:
        return [psutil.Process(pid)]
    except psutil.NoSuchProcess:
        return []


def _is_stopped(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False
