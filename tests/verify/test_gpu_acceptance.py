"""`paceline doctor --gpu`: which checks there are, and what they take for a problem."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from paceline.core.errors import ConfigError
from paceline.records.phases import PHASES
from paceline.records.profile import ProfiledBucket
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


def test_a_check_gives_every_flag_once(acceptance, monkeypatch):
    given: list[list[str]] = []

    def run_child(args, *_):
        given.append(args)
        return 0, ""

    monkeypatch.setattr(gpu_acceptance, "run_child", run_child)
    monkeypatch.setattr(gpu_acceptance, "read_environments", lambda _: [{"packages": {"torch": "2"}}])
    monkeypatch.setattr(gpu_acceptance, "read_profile", lambda _: SimpleNamespace(buckets=()))
    list(acceptance.run([]))
    assert len(given) > 15
    for args in given:
        flags = [word for word in args if word.startswith("--")]
        assert sorted(flags) == sorted(set(flags))


def test_a_line_shows_the_result():
    assert outcome_line(Outcome(name="ddp", problem=None, seconds=3.4)) == "ddp            3 s  ok"


def phases_line(step: float, seconds: float) -> str:
    phases = {name: [0.0, 0.0] for name in PHASES} | {"start": [1.0, 1.0], "forward": [step, step]}
    record = {"kind": "phases", "step": 60, "steps": 60, "seconds": [seconds] * 2, "phases": phases}
    return json.dumps(record | {"last": [0, 0], "cpu": [0.0, 0.0], "cpu_wait": [0.0, 0.0]}) + "\n"


@pytest.mark.parametrize(("seconds", "fits"), [(3.05, True), (3.2, False), (2.8, False)])
def test_phases_that_do_not_add_up_to_the_time_are_a_problem(acceptance, monkeypatch, tmp_path, seconds, fits):
    run = tmp_path / "runs" / "clock" / "001"
    run.mkdir(parents=True)
    (run / "phases.jsonl").write_text(phases_line(2.0, seconds))
    monkeypatch.setattr(gpu_acceptance, "run_child", lambda *_: (0, ""))
    (outcome,) = acceptance.run(["clock"])
    assert (outcome.problem is None) is fits
    assert outcome.detail.startswith(f"phases 2.00 s of {seconds - 1:.2f} s")


def test_a_run_without_phases_is_a_problem(acceptance, monkeypatch, tmp_path):
    (tmp_path / "runs" / "clock" / "001").mkdir(parents=True)
    monkeypatch.setattr(gpu_acceptance, "run_child", lambda *_: (0, ""))
    (outcome,) = acceptance.run(["clock"])
    assert outcome.problem == "phases.jsonl has no phases"


def bucket(ready: float, done: float) -> ProfiledBucket:
    return ProfiledBucket(bytes=4, ready=ready, ready_real=ready, done_real=done)


@pytest.mark.parametrize(
    ("buckets", "problem", "detail"),
    [
        ([bucket(0.1, 0.2), bucket(0.3, 0.4)], None, "1 of 2 buckets averaged before the last gradient"),
        ([bucket(0.1, 0.4), bucket(0.3, 0.5)], "the first bucket was averaged 100.0 ms after the last", "0 of 2"),
        ([bucket(0.1, 0.2)], "the gradients are in one bucket", "0 of 1"),
    ],
)
def test_gradients_that_are_averaged_after_the_backward_pass_are_a_problem(
    acceptance, monkeypatch, buckets, problem, detail
):
    monkeypatch.setattr(gpu_acceptance, "run_child", lambda *_: (0, ""))
    monkeypatch.setattr(gpu_acceptance, "read_profile", lambda _: SimpleNamespace(buckets=buckets))
    (outcome,) = acceptance.run(["overlap"])
    assert outcome.problem is problem is None or outcome.problem.startswith(problem)
    assert outcome.detail.startswith(detail)


@pytest.mark.parametrize(("nccl", "problem"), [("2.27", None), ("", "environment.json has no NCCL")])
def test_versions_are_printed_and_a_missing_one_is_a_problem(acceptance, monkeypatch, nccl, problem):
    gpu = {"device": "A100", "CUDA": "13.0", "cuDNN": "9.1", "NCCL": nccl}
    monkeypatch.setattr(gpu_acceptance, "run_child", lambda *_: (0, ""))
    monkeypatch.setattr(gpu_acceptance, "read_environments", lambda _: [{"packages": {"torch": "2.13.0"}, "gpu": gpu}])
    (outcome,) = acceptance.run(["versions"])
    assert outcome.problem == problem
    assert outcome_line(outcome).endswith(f"(torch 2.13.0, device A100, CUDA 13.0, cuDNN 9.1, NCCL {nccl})")


@pytest.mark.long
def test_the_acceptance_runs_on_simulated_gpus(tmp_path):
    command = [
        sys.executable,
        "-m",
        "paceline",
        "doctor",
        "--gpu",
        "--only",
        "versions,fp16,ddp,ghost,compress,profile,overlap,clock,visible,kill",
    ]
    done = subprocess.run(
        command, env=simulated_environment(), cwd=tmp_path, capture_output=True, text=True, timeout=LONGEST, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok") == 10
