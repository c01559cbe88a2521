"""No process of a launch outlives its launcher: not one that is stopped, hangs, or has a session of its own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from lab.environment import child_environment
from tests.conftest import LONGEST
from tests.launching.conftest import no_rank_left, processes_in

TREE = """
import os, signal, subprocess, sys, time
from pathlib import Path
from paceline.core.processes import end_with_parent
from paceline.launching import reaper

reaper.SECONDS_TO_STOP = 1
end_with_parent(parent=int(sys.argv[1]))
if sys.argv[2] == "reaper":
    reaper.become_reaper()
    end_with_parent()
sleep = [sys.executable, "-c", "import time; time.sleep(1000)"]
daemon = [sys.executable, "-c", f"import subprocess; subprocess.Popen({sleep}, start_new_session=True)"]
subprocess.run(daemon, check=True)  # its child has lost its parent
stopped = subprocess.Popen(sleep, start_new_session=True)
stopped.send_signal(signal.SIGSTOP)
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # hangs
Path("ready").touch()
if sys.argv[3] == "hang":
    time.sleep(1000)
sys.exit(7)
"""
LAUNCHER = """
import os, subprocess, sys
sys.exit(subprocess.run([sys.executable, "tree.py", str(os.getpid()), *sys.argv[1:]]).returncode)
"""


def living_in(folder: Path) -> list[int]:
    found = [process.info for process in psutil.process_iter(["pid", "cwd", "status"])]
    return [info["pid"] for info in found if info["cwd"] == str(folder) and info["status"] != psutil.STATUS_ZOMBIE]


@pytest.fixture
def launch(elsewhere):
    """Return a function that starts a launcher of a tree of processes in an empty folder."""
    (elsewhere / "tree.py").write_text(TREE)

    def start(*args: str) -> subprocess.Popen:
        return subprocess.Popen([sys.executable, "-c", LAUNCHER, *args], cwd=elsewhere, env=child_environment())

    yield start
    for pid in living_in(elsewhere):
        if pid != os.getpid():
            os.kill(pid, signal.SIGKILL)


def others_in(folder: Path) -> list[int]:
    return [pid for pid in living_in(folder) if pid != os.getpid()]


@pytest.mark.parametrize("keeper", ["reaper", "nobody"])
def test_stopped_hanging_and_detached_processes_end_with_a_launcher_that_was_killed(
    launch, elsewhere, wait_until, keeper
):
    launcher = launch(keeper, "hang")
    wait_until((elsewhere / "ready").exists, "the tree")
    launcher.kill()
    launcher.wait()
    if keeper == "reaper":
        wait_until(lambda: not others_in(elsewhere), "the end of every process")
    else:  # the control: the processes that the test needs a reaper for are there
        assert len(others_in(elsewhere)) == 3


def test_what_a_finished_launch_started_ends_with_it_and_its_exit_code_is_kept(launch, elsewhere):
    launcher = launch("reaper", "exit")
    assert launcher.wait(LONGEST) == 7
    assert others_in(elsewhere) == []


def test_a_launch_that_is_late_after_a_signal_is_killed_and_its_exit_status_is_kept(launch, elsewhere, wait_until):
    launcher = launch("reaper", "hang")
    wait_until((elsewhere / "ready").exists, "the tree")
    [reaper] = psutil.Process(launcher.pid).children()
    reaper.terminate()
    assert launcher.wait(LONGEST) == -signal.SIGKILL & 0xFF
    assert others_in(elsewhere) == []


ENDLESS = '''
import os, time, torch
from torch.utils.data import Dataset

class Endless(Dataset):
    """Its worker never returns, nor looks for the process that started it."""
    num_classes = 2
    def __len__(self): return 64
    def __getitem__(self, index):
        if index == 40 and torch.utils.data.get_worker_info() is not None:
            open("hangs", "w").close()
            while True: time.sleep(1)
        return torch.zeros(1, 8, 8), index % 2

def data():
    return Endless(), Endless()
'''


def test_a_loader_worker_that_never_returns_ends_with_its_killed_rank(start, elsewhere, wait_until):
    (elsewhere / "mine.py").write_text(ENDLESS)
    process = start("train", "--model", "mlp", "--data", "mine.py:data", "--workers", "1", "--global-batch", "32")
    wait_until((elsewhere / "hangs").exists, "the worker")
    assert len(processes_in(elsewhere)) == 2
    process.kill()
    process.communicate(timeout=LONGEST)
    wait_until(lambda: no_rank_left(elsewhere), "the end of the worker")
