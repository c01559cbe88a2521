"""`paceline submit` where there is no Slurm: the text it would submit, and what it refuses; tests/lab submits."""

import os
import sys

import pytest


def test_a_dry_run_prints_the_job_and_submits_nothing(run, monkeypatch):
    monkeypatch.setenv("PATH", "")
    answer = run("submit", "--nodes=2", "--gpus-per-node=4", "--time=2:00:00", "--dry-run", "--", "train", "--epochs=3")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("#!/bin/bash\n")
    assert answer.out.endswith(f"{sys.executable} -m paceline train --epochs=3\n")
    for line in ("--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4", "--time=2:00:00", "--requeue"):
        assert f"#SBATCH {line}\n" in answer.out


def test_options_of_sbatch_and_lines_of_setup_may_be_repeated(run):
    more = (
        "--sbatch=--constraint=a100",
        "--sbatch",
        "--qos=high",
        "--setup",
        "module load cuda",
        "--setup=ulimit -n 4096",
    )
    out = run("submit", *more, "--dry-run", "--", "train").out
    assert "#SBATCH --constraint=a100\n#SBATCH --qos=high\n" in out
    assert "module load cuda\nulimit -n 4096\n" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "after -- there is nothing"),
        (("--", "evaluate"), 'after -- there is "evaluate"'),
        (("--", "train", "--epochz=3"), "--epochz"),
        (("--", "train", "--epochs=0"), "--epochs is 0"),
        (("--", "train", "--config=missing.toml"), "missing.toml"),
        (("--", "train", "--rank=0", "--world-size=2"), "--rank"),
        (("--", "train", "--nnodes=2", "--rendezvous=a:1"), "--nnodes"),
        (("--ntasks-per-node=2", "--", "train", "--nproc=2"), "--nproc 2"),
        (("--array=2", "--", "train"), "--array needs --rendezvous-file"),
        (("--nodes=0", "--", "train"), "--nodes is 0"),
        (("--output=%N", "--", "train"), "only Slurm can fill in"),
    ],
)
def test_mistakes_are_found_before_anything_is_submitted(run, words, message):
    answer = run("submit", *words)
    assert answer.code == 2
    assert message in answer.message
    assert answer.out == ""


def test_a_machine_without_slurm_is_reported(run, monkeypatch):
    monkeypatch.setenv("PATH", "")
    answer = run("submit", "--", "train")
    assert answer.code == 1
    assert "sbatch was not found on this machine" in answer.message
    assert "--dry-run" in answer.hint


def test_what_sbatch_refuses_is_passed_on(run, elsewhere, monkeypatch):
    refusing = elsewhere / "sbatch"
    refusing.write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: x' >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{elsewhere}:{os.environ['PATH']}")
    answer = run("submit", "--partition=x", "--", "train")
    assert (answer.code, answer.message) == (1, "sbatch refused the job: invalid partition specified: x")
