"""`paceline submit` where there is no Slurm: the text it would submit, and what it refuses; tests/lab submits."""

import json
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


POD = ("--on=kubernetes", "--image=me/x:1", "--claim=disk:/disk")
RUNS = ("--", "train", "--runs-dir=/disk/runs")


@pytest.fixture
def fake(elsewhere, monkeypatch):
    """Return a function that puts a program into PATH that keeps its arguments and input, and says something."""

    def make(name, text="ok", code=0):
        path = elsewhere / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            f'#!/bin/sh\necho "$@" > {elsewhere}/args\ncat > {elsewhere}/input\necho {text} >&2\nexit {code}\n'
        )
        path.chmod(0o755)
        monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")

    return make


def test_kubernetes_gets_the_job_from_kubectl_and_the_user_what_to_type(run, fake, elsewhere):
    fake("kubectl")
    answer = run("submit", *POD, "--nodes=2", "--namespace=ml", "--job-name=big", *RUNS)
    assert (answer.code, answer.err) == (0, "")
    assert "to follow it: kubectl -n ml logs -f -l batch.kubernetes.io/job-name=big," in answer.out
    assert (elsewhere / "args").read_text() == "create -f -\n"
    text = (elsewhere / "input").read_text()
    assert text == run("submit", *POD, "--nodes=2", "--namespace=ml", "--job-name=big", "--dry-run", *RUNS).out
    fake("kubectl", "quota exceeded", 1)
    assert "kubectl refused the job: quota exceeded" in run("submit", *POD, *RUNS).err


def test_ray_gets_a_job_whose_settings_are_resolved(run, fake, elsewhere):
    fake("ray")
    words = ("--on=ray", "--nodes=2", "--gpus-per-node=4", "--address=http://head:8265")
    answer = run("submit", *words, "--", "train", "--runs-dir=/disk/runs", "--epochs=3")
    assert (answer.code, answer.err) == (0, "")
    args = (elsewhere / "args").read_text()
    assert args.startswith("job submit --address http://head:8265 --working-dir . --no-wait -- python -m ")
    job = json.loads(args[args.index("{") :])
    assert (job["num_workers"], job["gpus"], job["max_failures"], job["config"]["epochs"]) == (8, 1, 100, 3)
    assert job["config"]["track"] == ["auto", "ray"]


def test_print_shows_the_command_of_every_node(run):
    out = run("submit", "--on=print", "--nodes=2", "--ntasks-per-node=4", "--", "train", "--epochs=3").out
    command = f"{sys.executable} -m paceline train --epochs=3 --nproc 4 --nnodes 2 --rendezvous NODE0:29400 --node-rank"
    assert out.splitlines() == ["# on node 0", f"{command} 0", "# on node 1", f"{command} 1"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--on=kubernetes", *RUNS), "--on kubernetes needs --image"),
        (("--on=kubernetes", "--image=x", *RUNS), "no disk is mounted"),
        ((*POD, "--", "train"), "--runs-dir runs is not on a mounted disk"),
        ((*POD, "--claim=disk", *RUNS), '--claim is "disk"'),
        ((*POD, "--job-name=My_job", *RUNS), '--job-name is "My_job"'),
        ((*POD, "--partition=gpu", *RUNS), "--partition has no effect with --on kubernetes"),
        (("--image=x", "--", "train"), "--image has no effect with --on slurm"),
        (("--on=ray", "--", "train"), "is another folder on every node of Ray"),
        (("--on=ray", "--", "train", "--runs-dir=/r", "--nproc=2"), "every worker of Ray is a rank"),
        (("--on=kubernetes", "--", "train", "--epochz=3"), "--epochz"),
        ((*POD, "--", "train", "--nnodes=2", "--rendezvous=a:1"), "--nnodes is set by the job itself"),
    ],
)
def test_mistakes_for_other_engines_are_found_before_anything_is_submitted(run, words, message):
    answer = run("submit", *words)
    assert (answer.code, message in answer.err) == (2, True), answer.err
    assert "hint: " in answer.err or "Did you mean" in answer.err


@pytest.mark.parametrize(("engine", "program"), [(POD, "kubectl"), (("--on=ray",), "ray")])
def test_a_missing_program_says_how_to_go_without(run, monkeypatch, engine, program):
    monkeypatch.setenv("PATH", "")
    answer = run("submit", *engine, *RUNS)
    assert answer.code == 1
    assert f"{program} was not found on this machine" in answer.err
    assert "--dry-run" in answer.err
