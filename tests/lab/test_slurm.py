"""Jobs on a real Slurm: every way to start ranks in them, notice before the time limit, cancelling."""

import re
import signal
import sys

import pytest
import torch

from lab.hosts import LONGEST, wait_for
from lab.runs import PACELINE, ends, is_like, run_below, train, weights
from paceline.records.folder import RunFolder
from paceline.records.reader import read_environments, run_state

QUICK = pytest.mark.quick
LONG = ("--epochs=120", "--save-every=40 epochs", "--eval-every=40 epochs", "--log-every=100")
"""Long enough to be interrupted, a matter of seconds when not."""


@pytest.fixture
def train_by_slurm(slurm, tmp_path):
    """Return a function that runs `paceline train` under srun to its end."""

    def start(*words, srun):
        return ends(slurm.start("srun", *srun, *PACELINE, *train(*words), cwd=tmp_path))

    return start


@pytest.fixture
def submit(slurm, tmp_path):
    """Return a function that starts `paceline submit` on the controller; its jobs end with the test."""

    def start(*words, then):
        line = (*PACELINE, "submit", *words, "--", *train(*then))
        return slurm.start(*line, cwd=tmp_path)

    yield start
    slurm.run("scancel", "--user=root")
    wait_for(lambda: not slurm.run("squeue", "-h").stdout, "the last job to leave")


@pytest.fixture
def submitted(submit):
    """Return a function that submits without following and returns the number of the job."""

    def give(*words, then=()):
        ((out, _),) = ends(submit("--no-follow", *words, then=then))
        return job_in(out)

    return give


@QUICK
def test_srun_makes_each_task_a_rank(train_by_slurm, alone, tmp_path):
    train_by_slurm(srun=("--nodes=2", "--ntasks-per-node=1"))
    folder = run_below(tmp_path)
    is_like(alone, folder)
    assert [environment["launcher"] for environment in read_environments(folder)] == ["Slurm"]
    assert len(list(folder.path.glob("ranks/rank-*.json"))) == 2


def test_srun_with_several_tasks_per_node_makes_each_a_rank(train_by_slurm, alone, tmp_path):
    train_by_slurm(srun=("--nodes=2", "--ntasks-per-node=2"))
    is_like(alone, run_below(tmp_path))


def test_srun_with_a_task_per_node_starts_the_ranks_of_each(train_by_slurm, alone, tmp_path):
    train_by_slurm("--nproc=2", srun=("--nodes=2", "--ntasks-per-node=1"))
    folder = run_below(tmp_path)
    is_like(alone, folder)
    assert len(list(folder.path.glob("ranks/rank-*.json"))) == 4


def test_the_shell_that_salloc_opens_on_a_node_trains_alone(slurm, alone, tmp_path):
    shell = ("salloc", "--nodes=2", "--ntasks=4", "srun", "--interactive", "--preserve-env")
    ends(slurm.start(*shell, *PACELINE, *train("--timeout=20"), cwd=tmp_path))
    folder = run_below(tmp_path)
    is_like(alone, folder)
    assert [environment["world_size"] for environment in read_environments(folder)] == [1]


def test_a_submitted_job_is_followed_to_its_end(submit, alone, tmp_path):
    ((out, _),) = ends(submit("--nodes=2", "--time=10", then=()))
    is_like(alone, run_below(tmp_path))
    assert re.match(r"submitted job (\d+)\n", out)
    assert "RUNNING" in out
    assert re.search(r"^finished in ", out, re.MULTILINE), "what the job prints is shown"
    assert "COMPLETED" in out


def test_following_reports_a_job_that_fails(submit):
    ((out, _),) = ends(submit("--nodes=1", then=("--data=folder:/nowhere",)), code=1)
    assert "FAILED" in out


def test_ctrl_c_stops_following_and_not_the_job(submit, slurm, tmp_path):
    follower = submit("--nodes=1", then=("--epochs=100000",))
    wait_for(lambda: "RUNNING" in slurm.run("squeue", "-h", "-o", "%T").stdout, "the job to run")
    wait_for(lambda: list(tmp_path.glob("runs/*/*/metrics.jsonl")), "training")
    follower.send_signal(signal.SIGINT)
    ((out, _),) = ends(follower)
    job = job_in(out)
    assert f"scancel {job}" in out
    assert slurm.state(job) == "RUNNING"


def test_the_tasks_of_an_array_job_connect_through_a_file(submitted, slurm, alone, tmp_path):
    job = submitted("--array=2", f"--rendezvous-file={tmp_path}/meet")
    slurm.wait_for_state(job, "COMPLETED", "FAILED")
    assert slurm.state(job) == "COMPLETED COMPLETED", outputs(tmp_path)
    is_like(alone, run_below(tmp_path))


@pytest.fixture(scope="module")
def undisturbed(slurm, tmp_path_factory):
    """Return the weights of a long run on two nodes that nobody interrupted."""
    folder = tmp_path_factory.mktemp("undisturbed")
    srun = ("srun", "--nodes=2", "--ntasks-per-node=1")
    ends(slurm.start(*srun, *PACELINE, *train(*LONG), cwd=folder))
    return weights(run_below(folder))


@pytest.mark.parametrize(
    "request_words",
    [pytest.param(("--nodes=2",), id="job", marks=QUICK), pytest.param(("--array=2",), id="array")],
)
def test_notice_saves_queues_again_and_ends_with_the_same_bits(submitted, slurm, undisturbed, tmp_path, request_words):
    words = (*request_words, *([f"--rendezvous-file={tmp_path}/meet"] if "--array=2" in request_words else []))
    job = submitted(*words, then=LONG)
    wait_for(lambda: has_trained(tmp_path), "training")
    slurm.run("scancel", "--signal=USR1", job)
    wait_for(lambda: "STOPPED" in rank_states(tmp_path), "the run to stop")
    wait_for(lambda: is_over(slurm, job), "the job to run again and end")
    assert set(slurm.state(job).split()) == {"COMPLETED"}, outputs(tmp_path)
    folder = run_below(tmp_path)
    assert "Restarts=1" in slurm.show(job)
    assert run_state(folder) == "FINISHED"
    assert len(read_environments(folder)) == 2
    resumed = weights(folder)
    assert resumed.keys() == undisturbed.keys()
    assert all(torch.equal(resumed[name], undisturbed[name]) for name in resumed)


def test_a_job_is_requeued_up_to_its_limit(submitted, slurm, tmp_path):
    job = submitted("--nodes=2", then=("--epochs=100000", "--save-every=1000 epochs", "--max-requeues=0"))
    wait_for(lambda: has_trained(tmp_path), "training")
    slurm.run("scancel", "--signal=USR1", job)
    wait_for(lambda: is_over(slurm, job), "the job to end")
    assert "Restarts=0" in slurm.show(job)
    assert "was not requeued: it was requeued 0 times, and --max-requeues is 0" in outputs(tmp_path)


def test_notice_reaches_the_ranks_of_a_launcher(submitted, slurm, alone, tmp_path):
    job = submitted("--nodes=2", then=(*LONG, "--nproc=2"))
    wait_for(lambda: has_trained(tmp_path), "training")
    slurm.run("scancel", "--signal=USR1", job)
    wait_for(lambda: "STOPPED" in rank_states(tmp_path), "the run to stop")
    wait_for(lambda: is_over(slurm, job), "the job to run again and end")
    assert slurm.state(job) == "COMPLETED", outputs(tmp_path)
    folder = run_below(tmp_path)
    assert run_state(folder) == "FINISHED"
    assert len(read_environments(folder)) == 2


@pytest.mark.parametrize("words", [(), ("--nproc=2",)], ids=["ranks", "launchers"])
def test_a_cancelled_job_saves_and_stays_cancelled(submitted, slurm, tmp_path, words):
    job = submitted("--nodes=2", then=("--epochs=100000", "--save-every=100000 epochs", *words))
    wait_for(lambda: has_trained(tmp_path), "training")
    slurm.run("scancel", job)
    slurm.wait_for_state(job, "CANCELLED")
    wait_for(lambda: slurm.idle_nodes() >= {"node1", "node2"}, "the nodes to be free")
    folder = run_below(tmp_path)
    assert rank_states(tmp_path) >= {"STOPPED"}
    assert list(folder.checkpoints.glob("step-*"))
    assert "Restarts=0" in slurm.show(job)
    assert not slurm.run("squeue", "-h").stdout


def test_a_job_at_its_time_limit_resumes_in_the_next_one(submitted, slurm, undisturbed, tmp_path):
    hold = ("--save-every=1000 epochs", "--eval-every=1000 epochs")
    job = submitted("--nodes=2", "--time=1", then=("--epochs=100000", *hold))
    wait_for(lambda: "STOPPED" in rank_states(tmp_path), "the notice before the limit", seconds=90)
    wait_for(lambda: slurm.state(job) == "PENDING", "the job to be queued again")
    folder = run_below(tmp_path)
    assert list(folder.checkpoints.glob("step-*"))


def test_a_time_limit_without_notice_saves_too(submitted, slurm, tmp_path):
    hold = ("--save-every=1000 epochs", "--eval-every=1000 epochs")
    job = submitted("--nodes=2", "--time=1", "--sbatch=--signal=CONT@1", then=("--epochs=100000", *hold))
    wait_for(lambda: slurm.state(job) == "TIMEOUT", "the time limit", seconds=2 * LONGEST)
    folder = run_below(tmp_path)
    wait_for(lambda: run_state(folder) == "STOPPED", "the lead to leave word")
    assert list(folder.checkpoints.glob("step-*"))


@QUICK
def test_the_job_of_a_new_project_trains_on_two_ranks(slurm, tmp_path):
    ends(slurm.start(*PACELINE, "new", "flowers", cwd=tmp_path))
    ours = {"OMP_NUM_THREADS": "1", "PYTHON": sys.executable, "PACELINE_STEPS": "2", "PACELINE_TRACK": "none"}
    environ = slurm.environment | ours
    ends(slurm.start("sbatch", "--wait", "slurm.sbatch", cwd=tmp_path / "flowers", env=environ))
    folder = RunFolder(tmp_path / "flowers" / "runs" / "flowers" / "001")
    assert [(facts["launcher"], run_state(folder)) for facts in read_environments(folder)] == [("Slurm", "FINISHED")]
    assert len(list(folder.path.glob("ranks/rank-*.json"))) == 2


def job_in(text) -> str:
    (job,) = re.findall(r"^submitted job (\d+)$", text, re.MULTILINE)
    return job


def has_trained(folder) -> bool:
    return any('"kind": "step"' in path.read_text() for path in folder.glob("runs/*/*/metrics.jsonl"))


def rank_states(folder) -> set[str]:
    texts = [path.read_text() for path in folder.glob("runs/*/*/ranks/rank-*.json")]
    return {match[1] for text in texts if (match := re.search(r'"state": "(\w+)"', text))}


def is_over(slurm, job) -> bool:
    slurm.start_waiting_jobs()
    return slurm.is_in(job, "COMPLETED", "FAILED", "CANCELLED")


def outputs(folder) -> str:
    return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in folder.glob("*.out"))
