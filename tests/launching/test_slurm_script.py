"""The script of a Slurm job, and what is refused before anything is submitted."""

import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest

from paceline.core.errors import ConfigError
from paceline.launching.slurm_script import JobRequest, job_script, seconds_of

TRAIN = ("train", "--model", "resnet20")


def options(request):
    """Return the options of sbatch in the text."""
    lines = job_script(request, "/env/bin/python", TRAIN).splitlines()
    return [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]


def test_a_job_is_written_like_this():
    request = JobRequest(nodes=2, gpus_per_node=4, time="2:00:00", partition="gpu", setup=("module load cuda",))
    assert job_script(request, "/env/bin/python", ["train", "--model", "my model.py:build"]) == (
        "#!/bin/bash\n"
        "#SBATCH --job-name=paceline\n"
        "#SBATCH --nodes=2\n"
        "#SBATCH --ntasks-per-node=4\n"
        "#SBATCH --gpus-per-node=4\n"
        "#SBATCH --time=2:00:00\n"
        "#SBATCH --partition=gpu\n"
        "#SBATCH --output=%x-%j.out\n"
        "#SBATCH --open-mode=append\n"
        "#SBATCH --signal=USR1@120\n"
        "#SBATCH --requeue\n"
        "\n"
        f"# written by paceline {version('paceline')}\n"
        "# without --cpus-per-task each rank has the site's default, often one core for it and its loaders\n"
        "ulimit -c 0\n"
        'trap "" USR1\n'
        "set -e\n"
        "module load cuda\n"
        "set +e\n"
        "\n"
        'exec srun --kill-on-bad-exit=1 bash -c \'trap "" USR1; exec "$@"\' task \\\n'
        "    /env/bin/python -m paceline train --model 'my model.py:build'\n"
    )


@pytest.mark.parametrize(
    ("request_", "tasks"),
    [
        (JobRequest(nodes=2), 1),
        (JobRequest(gpus_per_node=8), 8),
        (JobRequest(tasks_per_node=3), 3),
        (JobRequest(gpus_per_node=8, tasks_per_node=1), 1),
        (JobRequest(gpus_per_node=2, array=3, rendezvous_file=Path("meet")), 1),
    ],
)
def test_every_gpu_gets_a_task_by_default(request_, tasks):
    assert f"--ntasks-per-node={tasks}" in options(request_)


def test_cores_reach_srun_which_does_not_inherit_them():
    request = JobRequest(cpus_per_task=6)
    assert "--cpus-per-task=6" in options(request)
    assert "exec srun --kill-on-bad-exit=1 --cpus-per-task=6 bash" in job_script(request, "python", TRAIN)


def test_further_options_come_last_and_so_win():
    request = JobRequest(account="me", mem="64G", sbatch=("--constraint=a100", "--signal=USR1@30"))
    assert options(request)[-2:] == ["--constraint=a100", "--signal=USR1@30"]
    assert {"--account=me", "--mem=64G"} <= set(options(request))


def test_each_task_of_an_array_job_is_one_rank_started_by_hand():
    request = JobRequest(array=3, rendezvous_file=Path("/shared/my meeting"))
    text = job_script(request, "python", TRAIN)
    assert "--array=0-2" in options(request)
    assert "--output=%x-%A_%a.out" in options(request)
    assert text.endswith(
        'train --model resnet20 --rank "$SLURM_ARRAY_TASK_ID" --world-size "$SLURM_ARRAY_TASK_COUNT" '
        "--init-method 'file:///shared/my meeting'\n"
    )


@pytest.mark.parametrize(
    "request_",
    [
        JobRequest(nodes=2, time="10", setup=("echo 'it works'",)),
        JobRequest(array=2, rendezvous_file=Path("a b"), cpus_per_task=2, sbatch=("--comment='x y'",)),
    ],
)
def test_bash_can_read_the_text(request_):
    text = job_script(request_, "/path with space/python", ["train", "--model", "it's.py:build"])
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("90", 5400), ("1:30", 90), ("2:00:00", 7200), ("1-12", 129600), ("1-00:30", 88200), ("2-00:00:01", 172801)],
)
def test_time_limits_are_read_as_sbatch_reads_them(time, seconds):
    assert seconds_of(time) == seconds


@pytest.mark.parametrize(("time", "notice"), [(None, 120), ("2:00:00", 120), ("4", 60), ("0:20", 5), ("0:01", 1)])
def test_a_short_job_is_not_stopped_as_soon_as_it_starts(time, notice):
    assert f"--signal=USR1@{notice}" in options(JobRequest(time=time))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"nodes": 0}, "--nodes is 0"),
        ({"gpus_per_node": -1}, "--gpus-per-node is -1"),
        ({"time": "soon"}, '--time is "soon"'),
        ({"time": ""}, '--time is ""'),
        ({"job_name": "two words"}, '--job-name is "two words"'),
        ({"sbatch": ("--a\n--b",)}, "one line each"),
        ({"array": 2}, "--array needs --rendezvous-file"),
        ({"rendezvous_file": Path("x")}, "--rendezvous-file is only for array jobs"),
        ({"array": 2, "rendezvous_file": Path("x"), "nodes": 2}, "one rank on one node"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        JobRequest(**wrong)


def test_the_output_is_found_unless_only_slurm_knows_its_name():
    assert JobRequest(job_name="x").output_file("17") == Path("x-17.out")
    assert JobRequest(array=2, rendezvous_file=Path("m")).output_file("17") == Path("paceline-17_0.out")
    assert JobRequest(output="logs/%j/%x.log").output_file("17") == Path("logs/17/paceline.log")
    with pytest.raises(ConfigError, match="only Slurm can fill in"):
        JobRequest(output="%N.out").output_file("17")
