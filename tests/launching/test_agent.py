"""torchrun is started before the settings are read: it waits for its words, and goes where it is not needed."""

import os
import subprocess
import sys

import paceline
from paceline.launching.agent import Agent, _ahead, agent_for, started_ahead
from tests.conftest import LONGEST, child_environment
from tests.launching.conftest import no_rank_left

ALONE = """
import psutil
from torch import nn

def build(num_classes):
    names = [child.cmdline()[2:3] for child in psutil.Process().children()]
    print("children:", [name for name, in names if name.startswith("paceline")], flush=True)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
"""

RANK = """
import os
from pathlib import Path

Path(f"rank{os.environ['RANK']}").write_bytes(os.environb[b"OURS"] + os.environb.get(b"OLD", b""))
"""


def test_the_agent_becomes_torchrun_with_the_words_and_variables_it_is_given(elsewhere, monkeypatch):
    (elsewhere / "rank.py").write_text(RANK)
    monkeypatch.setenv("OLD", "1")
    agent = Agent()
    environ = {key: value for key, value in os.environ.items() if key != "OLD"}
    agent.begin(["--standalone", "--nproc-per-node=2", "rank.py"], environ | {"OURS": "\udcff"})
    assert agent.process.wait(LONGEST) == 0, agent.said()
    assert [(elsewhere / f"rank{rank}").read_bytes() for rank in (0, 1)] == [b"\xff", b"\xff"]


def test_an_agent_that_fails_leaves_word(elsewhere):
    agent = Agent()
    agent.begin(["--standalone", "--nproc-per-node=1", "missing.py"], os.environ)
    assert agent.process.wait(LONGEST) != 0
    assert "missing.py" in agent.said()


def test_an_agent_that_is_gone_before_it_has_its_words_is_no_error_of_its_own(elsewhere):
    agent = Agent()
    agent.process.kill()
    agent.process.wait(LONGEST)
    agent.begin(["--nproc-per-node=1", "x.py"], os.environ | {"LONG": "x" * 10**6})
    assert agent.said() == ""


def test_only_what_looks_like_a_launch_starts_one_ahead_and_it_ends_with_the_command():
    for line, environ in (("train", {}), ("bench --nproc 2", {}), ("train --nproc 2", {"RANK": "0"})):
        with started_ahead(line.split(), environ):
            assert not _ahead
    with started_ahead(["train", "--nproc=2"], {}):
        (agent,) = _ahead
        assert agent.process.poll() is None
    assert agent.process.poll() is not None


def test_ranks_that_print_elsewhere_get_an_agent_of_their_own(tmp_path):
    with started_ahead(["train", "--nproc", "2"], {}), (tmp_path / "out").open("wb") as out:
        (waiting,) = _ahead
        other = agent_for(out.fileno())
        assert other is not waiting
        assert agent_for(None) is waiting
        for agent in (other, waiting):
            agent.dismiss()


def test_a_launch_that_is_refused_leaves_no_process(start, elsewhere):
    # an agent that stayed would hold stdout, and a pipe would wait for it
    process = start("train", "--nproc", "2", "--epochs", "many", stdout=subprocess.DEVNULL)
    _, errors = process.communicate(timeout=LONGEST)
    assert (process.returncode, "--epochs" in errors) == (2, True)
    assert no_rank_left(elsewhere)


def test_a_command_that_trains_itself_keeps_no_agent(start, elsewhere):
    (elsewhere / "alone.py").write_text(ALONE)
    process = start("train", "--model", "alone.py:build", "--steps", "1", "--mode", "dp", "--nproc", "2")
    output, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 0, errors
    assert "children: []" in output


def test_the_package_is_there_before_what_takes_time_to_import():
    code = "import sys, paceline; print({'cyclopts', 'psutil', 'torch'} & {*sys.modules})"
    line = [sys.executable, "-c", code]
    text = subprocess.run(line, env=child_environment(), capture_output=True, text=True, check=True, timeout=LONGEST)
    assert text.stdout == "set()\n"


def test_the_package_has_what_it_says_it_has():
    assert set(paceline.__all__) <= set(dir(paceline))
    assert all(hasattr(paceline, name) for name in paceline.__all__)
    assert not hasattr(paceline, "nothing")
