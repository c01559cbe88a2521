"""Processes: their identity, and their end together with the one that started them."""

import os
import signal
import subprocess
import sys

from paceline.core.processes import process_start
from tests.conftest import LONGEST


def test_a_process_that_has_lost_its_parent_already_gets_the_signal_at_once():
    code = "import os; from paceline.core.processes import end_with_parent; end_with_parent(parent=os.getppid() + 1)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=LONGEST).returncode == -signal.SIGTERM


def test_a_process_is_known_by_its_pid_and_start():
    first, second = (subprocess.Popen(["sleep", "1000"]) for _ in range(2))
    try:
        assert process_start(first.pid) == process_start(first.pid)
        assert process_start(os.getpid()) != process_start(first.pid)
    finally:
        first.kill()
        second.kill()
    first.wait()
    second.wait()
    assert process_start(first.pid) is None
