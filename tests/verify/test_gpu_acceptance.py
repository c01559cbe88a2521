"""`paceline doctor --gpu`: which checks there are, and what they take for a problem."""

import subprocess
import sys

import pytest

from paceline.core.errors import ConfigError
from paceline.verify import gpu_acceptance
from paceline.verify.gpu_acceptance import Acceptance, Outcome, outcome_line, refuse_too_few
from tests.conftest import LONGEST
from tests.sim.simulate import simulated_environment


@pytest.fixture
def acceptance(tmp_path):
    return Acceptance(tmp_path, {}, "cuda")


def test_one_gpu_is_too_few():
    refuse_too_few(2)
    with pytest.raises(ConfigError, match="--gpu needs two GPUs, but 1 are visible"):
        refuse_too_few(1)


def test_an_unknown_check_is_refused(acceptance):
    with pytest.raises(ConfigError, match="there is no check warp"):
        list(acceptance.run(["warp"]))


@pytest.mark.parametrize(
    ("check", "answer", "problem"),
    [
        ("ddp", (0, ""), None),
        ("ddp", (1, "paceline: no GPU\n  hint: buy one\n"), "exit code 1: paceline: no GPU"),
        ("bitwise", (0, ""), None),
        ("visible", (3, "broken"), "exit code 3: broken"),
        ("kill", (1, "rank 1 died"), None),
        ("kill", (1, "Aborted"), "exit code 1, and rank 1 is not named"),
        ("hang", (0, "rank 1"), "exit code 0, and rank 1 is not named"),
    ],
)
def test_a_check_judges_exit_code_and_output(acceptance, monkeypatch, check, answer, problem):
    monkeypatch.setattr(gpu_acceptance, "run_child", lambda *_: answer)
    (outcome,) = acceptance.run([check])
    assert outcome.problem == problem


def test_a_line_shows_the_result():
    assert outcome_line(Outcome(name="ddp", problem=None, seconds=3.4)) == "ddp            3 s  ok"


@pytest.mark.long
def test_the_acceptance_runs_on_simulated_gpus(tmp_path):
    command = [sys.executable, "-m", "paceline", "doctor", "--gpu", "--only", "single,ddp,visible,kill"]
    done = subprocess.run(
        command, env=simulated_environment(), cwd=tmp_path, capture_output=True, text=True, timeout=LONGEST, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok") == 4
