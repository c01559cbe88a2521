"""`--resume auto`: the same command starts a run, resumes it, and does nothing when it has finished."""

import pytest

from paceline.core.world import World
from paceline.records.entries import State
from paceline.records.folder import RunFolder
from paceline.records.reader import read_environments, run_state
from paceline.records.writer import write_rank

AUTO = ("--name=mine", "--resume=auto")


def runs_of(folder):
    return sorted(path.name for path in (folder / "runs" / "mine").iterdir() if path.is_dir())


def test_one_command_starts_resumes_and_then_reports_a_finished_run(train, elsewhere):
    first = train(*AUTO, "--steps=5")
    assert (first.code, runs_of(elsewhere)) == (0, ["001"])
    assert "resumed after" not in first.out
    write_rank(RunFolder(elsewhere / "runs/mine/001").rank(0), World(pid=1, pid_start="0"), State.TRAINING, step=5)
    again = train(*AUTO)
    assert (again.code, runs_of(elsewhere)) == (0, ["001"])
    assert "resumed after step 5" in again.out
    done = train(*AUTO)
    assert (done.code, runs_of(elsewhere), done.out) == (0, ["001"], "")
    assert "has finished" in done.message
    assert len(read_environments(RunFolder(elsewhere / "runs/mine/001"))) == 2


def test_settings_of_another_run_are_refused_and_a_refused_start_leaves_no_folder(train, elsewhere):
    assert train(*AUTO, "--data=folder:nowhere").code == 2
    assert runs_of(elsewhere) == []
    assert train(*AUTO, "--steps=2").code == 0
    other = train(*AUTO, "--steps=2", "--lr=0.5")
    assert (other.code, other.message) == (2, "runs/mine/001 was trained with --lr 0.1, not 0.5")
    assert "--name NAME" in other.hint
    assert runs_of(elsewhere) == ["001"]


def test_a_run_that_another_process_trains_is_waited_for_then_refused_with_code_1(train, elsewhere):
    assert train(*AUTO, "--steps=2").code == 0
    write_rank(RunFolder(elsewhere / "runs/mine/001").rank(0), World(pid=1), State.TRAINING, step=2)
    busy = train(*AUTO, "--timeout=1")
    assert busy.code == 0, "the control: process 1 has another start time"
    write_rank(RunFolder(elsewhere / "runs/mine/001").rank(0), World(host="elsewhere"), State.TRAINING, step=2)
    busy = train(*AUTO, "--timeout=1")
    assert busy.code == 1
    assert "is in use by process" in busy.message


@pytest.mark.slow
def test_two_commands_at_the_same_moment_train_one_run(start, elsewhere):
    words = ["train", "--model=mlp", "--epochs=2", "--threads=1", "--track=none", *AUTO]
    both = [start(*words), start(*words)]
    answers = [process.communicate(timeout=200) for process in both]
    assert [process.returncode for process in both] == [0, 0], answers
    assert runs_of(elsewhere) == ["001"]
    assert run_state(RunFolder(elsewhere / "runs/mine/001")) == State.FINISHED
    assert sum("has finished" in err for _, err in answers) == 1
    assert len(read_environments(RunFolder(elsewhere / "runs/mine/001"))) == 1


@pytest.mark.slow
def test_two_ranks_resume_by_the_same_command(start, elsewhere):
    words = ["train", "--model=mlp", "--threads=1", "--track=none", "--nproc=2", *AUTO]
    for options, last in ((["--epochs=1"], ""), (["--epochs=2"], "resumed after step 11"), (["--epochs=2"], "")):
        process = start(*words, *options)
        out, err = process.communicate(timeout=250)
        assert process.returncode == 0, err
        assert last in out
    assert "has finished" in err
    assert runs_of(elsewhere) == ["001"]
