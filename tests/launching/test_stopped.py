"""A process of a launch that is stopped for longer than the timeout is killed; one that is continued is not."""

import os
import signal
import subprocess
import sys

import pytest

from paceline.launching import stopped
from paceline.launching.stopped import StoppedProcesses

PARENT = """
import subprocess, sys
child = subprocess.Popen(["sleep", "1000"])
print(child.pid, flush=True)
child.wait()
child = subprocess.Popen(["sleep", "1000"])
child.wait()
"""


@pytest.fixture
def clock(monkeypatch):
    """Return the list whose only item is the time."""
    now = [0.0]
    monkeypatch.setattr(stopped.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def tree():
    """Return a process and the pid of its child."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        yield process, child
        for pid in (child, process.pid):
            if os.path.exists(f"/proc/{pid}"):  # noqa: PTH110
                os.kill(pid, signal.SIGKILL)


def is_stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
        return file.read().rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("victim", ["child", "parent"])
def test_a_stopped_process_is_killed_after_the_timeout(tree, clock, wait_until, capsys, victim):
    process, child = tree
    pid = child if victim == "child" else process.pid
    watch = StoppedProcesses(timeout=100)
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: is_stopped(pid), "the process to stop")
    for clock[0] in (1, 50, 99):
        watch.end_below(process.pid)
    assert is_stopped(pid), "a blip shorter than the timeout costs nothing"
    clock[0] = 106
    watch.end_below(process.pid)
    gone = lambda: not os.path.exists(f"/proc/{pid}") or process.poll() is not None  # noqa: E731, PTH110
    wait_until(gone, "the end of the process")
    assert f"process {pid} was stopped (SIGSTOP) for 105 s" in capsys.readouterr().err


def test_a_process_that_was_continued_counts_from_the_next_stop(tree, clock, wait_until):
    process, child = tree
    watch = StoppedProcesses(timeout=100)
    for clock[0], number in ((1, signal.SIGSTOP), (60, signal.SIGCONT), (90, signal.SIGSTOP)):
        os.kill(child, number)
        wait_until(lambda number=number: is_stopped(child) == (number == signal.SIGSTOP), "the signal")
        watch.end_below(process.pid)
    clock[0] = 150
    watch.end_below(process.pid)
    assert is_stopped(child)
