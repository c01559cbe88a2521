"""`paceline submit` where there is no Slurm: the text it would submit, and what it refuses; tests/lab submits."""

import json
import os
import shlex
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


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--on=ray", "--time=2:00:00"), "--time has no effect with --on ray"),
        (("--on=ray", "--mem=64G"), "--mem has no effect with --on ray"),
        (("--on=ray", "--job-name=big"), "--job-name has no effect with --on ray"),
        (("--on=ray", "--gpus-per-node=4", "--ntasks-per-node=8"), "the 4 GPUs of a node cannot be divided equally"),
        (("--on=print", "--time=2:00:00"), "--time has no effect with --on print"),
        (("--on=print", "--cpus-per-task=2"), "--cpus-per-task has no effect with --on print"),
        ((*POD, "--mem=64g"), '--mem is "64g"'),
    ],
)
def test_a_resource_that_an_engine_would_drop_is_refused(run, args, message):
    answer = run("submit", *args, "--dry-run", *RUNS)
    assert (answer.code, answer.out, message in answer.message) == (2, "", True), answer.err
    assert answer.hint


@pytest.mark.parametrize(
    "dropped", ["--timeout=7", "--check-up", "--trust", "--max-restarts=2", "--backend=gloo", "--resume=runs/demo/001"]
)
def test_a_flag_that_workers_of_ray_do_not_get_is_refused(run, dropped, own_run):
    answer = run("submit", "--on=ray", "--dry-run", *RUNS, dropped)
    name, _, value = dropped.partition("=")
    shown = f"--resume {value}" if name == "--resume" else name
    assert (answer.code, answer.message.startswith(f"{shown} has no effect with --on ray")) == (2, True), answer.err


def test_flags_that_engines_use_are_accepted(run):
    ray = ("--gpus-per-node=4", "--ntasks-per-node=2", "--cpus-per-task=3", "--setup=true")
    assert run("submit", "--on=ray", *ray, "--dry-run", *RUNS, "--resume=auto", "--max-requeues=2").code == 0
    assert '"memory": "64Gi"' in run("submit", *POD, "--mem=64G", "--dry-run", *RUNS).out.replace(
        "memory:", '"memory":'
    )
    assert run("submit", "--on=print", *RUNS, "--timeout=7").out.endswith("--timeout=7\n")


@pytest.mark.parametrize("short", ["--quiet", "-q", "--verbose"])
def test_the_short_forms_of_train_reach_the_job(run, short):
    answer = run("submit", "--dry-run", "--", "train", short)
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.endswith(f"paceline train {short}\n")
    assert json.loads(ray_job(run("submit", "--on=ray", "--dry-run", *RUNS, "-q").out))["config"]["console"] == "quiet"


def ray_job(command):
    """Return the job in the command that a dry run for Ray prints."""
    return next(arg for arg in shlex.split(command) if arg.startswith("{"))


@pytest.mark.parametrize(("engine", "program"), [(POD, "kubectl"), (("--on=ray",), "ray")])
def test_a_missing_program_says_how_to_go_without(run, monkeypatch, engine, program):
    monkeypatch.setenv("PATH", "")
    answer = run("submit", *engine, *RUNS)
    assert answer.code == 1
    assert f"{program} was not found on this machine" in answer.err
    assert "--dry-run" in answer.err
