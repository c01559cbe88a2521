"""torchrun as a child process of the launcher."""

import os
import subprocess
import sys

import paceline
from lab.environment import child_environment
from paceline.launching.agent import Agent
from tests.conftest import LONGEST
from tests.launching.conftest import no_rank_left

RANK = """
import os
from pathlib import Path

Path(f"rank{os.environ['RANK']}").write_bytes(os.environb[b"OURS"] + os.environb.get(b"OLD", b""))
"""


def test_the_agent_is_torchrun_with_the_arguments_and_variables_it_is_given(elsewhere, monkeypatch):
    (elsewhere / "rank.py").write_text(RANK)
    monkeypatch.setenv("OLD", "1")
    environ = {key: value for key, value in os.environ.items() if key != "OLD"}
    agent = Agent(["--standalone", "--nproc-per-node=2", "rank.py"], environ | {"OURS": "\udcff"})
    assert agent.process.wait(LONGEST) == 0, agent.output()
    assert [(elsewhere / f"rank{rank}").read_bytes() for rank in (0, 1)] == [b"\xff", b"\xff"]


def test_an_agent_that_fails_keeps_its_output(elsewhere):
    agent = Agent(["--standalone", "--nproc-per-node=1", "missing.py"], os.environ)
    assert agent.process.wait(LONGEST) != 0
    assert "missing.py" in agent.output()


def test_a_launch_that_is_refused_leaves_no_process(start, elsewhere):
    process = start("train", "--nproc", "2", "--epochs", "many", stdout=subprocess.DEVNULL)
    _, errors = process.communicate(timeout=LONGEST)
    assert (process.returncode, "--epochs" in errors) == (2, True)
    assert no_rank_left(elsewhere)


def test_the_package_is_there_before_what_takes_time_to_import():
    code = "import sys, paceline; print({'cyclopts', 'psutil', 'torch'} & {*sys.modules})"
    line = [sys.executable, "-c", code]
    text = subprocess.run(line, env=child_environment(), capture_output=True, text=True, check=True, timeout=LONGEST)
    assert text.stdout == "set()\n"


def test_the_package_has_what_it_says_it_has():
    assert set(paceline.__all__) <= set(dir(paceline))
    assert all(hasattr(paceline, name) for name in paceline.__all__)
    assert not hasattr(paceline, "nothing")
