"""How a process ends: exit functions run, and a rank that is still connected skips what may crash afterwards."""

import subprocess
import sys

import pytest

from lab.environment import child_environment
from tests.conftest import LONGEST

SCRIPT = """
import atexit, os, sys
import torch.distributed as dist
from paceline.cli import leave

class Destructor:
    def __del__(self):
        os.abort()

destructor = Destructor()
atexit.register(print, "the exit function ran")
if sys.argv[1] == "connected":
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
leave(2)
"""


@pytest.mark.parametrize(("state", "code"), [("connected", 2), ("alone", -6)])
def test_a_rank_that_is_still_connected_skips_destructors_and_keeps_its_exit_code(state, code, elsewhere):
    words = [sys.executable, "-c", SCRIPT, state]
    options = {"timeout": LONGEST, "cwd": elsewhere, "env": child_environment()}
    answer = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    assert (answer.returncode, answer.stdout) == (code, "the exit function ran\n"), answer.stderr


INTERRUPTED = """
import atexit, os, signal, sys, weakref
from paceline import {module}

class Late: pass

late = Late()
weakref.finalize(late, os.kill, os.getpid(), signal.SIGINT)  # Ctrl-C while the interpreter shuts down
{code}
"""
LEAVE = "cli.leave(3)"
SECOND = """
def interrupted():
    raise KeyboardInterrupt
from paceline import cli
cli.main = interrupted
__main__.main()
"""


@pytest.mark.parametrize(("module", "code"), [("cli", LEAVE), ("__main__", SECOND)])
def test_ctrl_c_while_a_command_leaves_gives_no_traceback(module, code, elsewhere):
    script = INTERRUPTED.format(module=module, code=code)
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=LONGEST,
        env=child_environment(),
    )  # fmt: skip
    assert (answer.returncode, answer.stderr.replace("paceline: interrupted\n", "")) == (130, "")
