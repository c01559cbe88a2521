"""One attempt at a time trains a run, and one that was cut off no longer writes to it."""

import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline.core.errors import RunError
from paceline.core.world import World
from paceline.engine.checkpoint import NO_OTHERS, Checkpoints
from paceline.engine.checkpoint_folder import Captured
from paceline.records import attempt
from paceline.records.attempt import claim_run, fenced, has_locks, sees_attempt, take_over
from paceline.records.entries import State
from paceline.records.folder import RunFolder
from paceline.records.writer import replacing, write_rank
from tests.conftest import LONGEST

CLAIM = """
import os, sys
from pathlib import Path
from paceline.core.errors import RunError
from paceline.records.attempt import claim_run
from paceline.records.folder import RunFolder

print("ready", flush=True)
sys.stdin.readline()
try:
    claim_run(RunFolder(Path(sys.argv[1])))
    print("claimed", flush=True)
except RunError as problem:
    print(problem.message, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    folder = RunFolder(tmp_path)
    folder.rank(0).parent.mkdir()
    return folder


def test_of_two_processes_at_the_same_moment_one_is_refused(folder):
    line = [sys.executable, "-c", CLAIM, str(folder.path)]
    both: list[Any] = [subprocess.Popen(line, stdin=-1, stdout=-1, text=True, bufsize=1) for _ in range(2)]
    for process in both:
        assert process.stdout.readline() == "ready\n"
    for process in both:
        process.stdin.write("go\n")
    answers = [process.stdout.readline() for process in both]
    assert sorted(answer == "claimed\n" for answer in answers) == [False, True]
    refused = next(answer for answer in answers if answer != "claimed\n")
    winner = both[answers.index("claimed\n")]
    assert f"is in use by process {winner.pid} on " in refused
    for process in both:
        process.communicate("end\n", timeout=LONGEST)
    claim_run(folder)  # the control: nobody is there any more


def test_a_process_with_the_pid_of_the_one_before_it_may_resume(folder):
    """A container that is restarted at once has the same pids and the same host name."""
    write_rank(folder.rank(0), World(pid=os.getppid(), pid_start="before-1"), State.TRAINING, step=5)
    claim_run(folder)
    owner = json.loads(folder.attempt.read_text())
    folder.attempt.write_text(json.dumps(owner | {"pid": os.getppid(), "pid_start": "before-1"}))
    claim_run(folder)
    write_rank(folder.rank(0), World(pid=os.getppid(), pid_start=None), State.TRAINING, step=5)
    with pytest.raises(RunError, match=f"in use by process {os.getppid()} "):  # the control
        claim_run(folder)


def test_an_attempt_on_another_host_is_over_when_its_lead_has_ended(folder):
    claim_run(folder)
    owner = json.loads(folder.attempt.read_text())
    folder.attempt.write_text(json.dumps(owner | {"host": "elsewhere"}))
    with pytest.raises(RunError, match="on elsewhere"):
        claim_run(folder)
    write_rank(folder.rank(0), World(host="elsewhere"), State.STOPPED, step=5)
    claim_run(folder)


def test_an_attempt_that_was_cut_off_replaces_no_file(folder):
    old = take_over(folder)
    path = folder.path / "file"
    with replacing(path, fence=lambda: fenced(old)) as scratch:
        scratch.write_text("old")
    new = take_over(folder)
    with pytest.raises(RunError, match="newer attempt"), replacing(path, fence=lambda: fenced(old)) as scratch:
        scratch.write_text("too late")
    assert path.read_text() == "old"
    with replacing(path, fence=lambda: fenced(new)) as scratch:
        scratch.write_text("new")
    assert [entry.name for entry in folder.path.glob("*file*")] == ["file"], "and no scratch file is left"


def test_a_lead_that_was_cut_off_cannot_save_over_the_checkpoint_of_a_newer_attempt(folder):
    folder.checkpoints.mkdir()
    old = take_over(folder)

    def save(attempt: RunFolder, who: str) -> None:
        checkpoints = Checkpoints(folder.checkpoints, keep=2, fence=lambda: fenced(attempt))
        checkpoints.save(Captured.of({"who": who}), NO_OTHERS, step=3, best_step=None)

    save(old, "old")
    new = take_over(folder)
    save(new, "new")
    with pytest.raises(RunError, match="newer attempt"):
        save(old, "old")
    state, _ = Checkpoints(folder.checkpoints, keep=2).newest_good(NO_OTHERS, pytest.fail)
    assert state["who"] == "new"


def test_a_lock_that_is_never_released_is_an_error_with_the_name_of_the_owner(folder, monkeypatch):
    monkeypatch.setattr(attempt, "SECONDS_TO_LOCK", 0.1)
    old = take_over(folder)
    with fenced(old):  # as a process does that is stopped meanwhile
        for start in (take_over, claim_run):
            with pytest.raises(RunError, match=rf"still locked after 0.1 seconds; process {os.getpid()} on "):
                start(folder)
    take_over(folder)


def test_a_heartbeat_holds_the_lock_only_while_it_renames(folder, monkeypatch):
    old = take_over(folder)
    is_free: list[bool] = []
    written = Path.write_text

    def tried(path, *args, **options):
        with folder.attempt.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_free.append(True)
        return written(path, *args, **options)

    monkeypatch.setattr(Path, "write_text", tried)
    write_rank(folder.rank(0), World(), State.TRAINING, fence=lambda: fenced(old))
    assert is_free == [True]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_locks_in_the_file_system_the_token_is_still_checked(folder, monkeypatch, number):
    assert has_locks(take_over(folder))

    def refused(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refused)
    claim_run(folder)
    old = take_over(folder)
    assert not has_locks(old)
    with fenced(old):
        pass
    take_over(folder)
    with pytest.raises(RunError, match="newer attempt"), fenced(old):
        pass


def test_a_folder_of_the_same_name_on_another_disk_is_not_that_of_the_attempt(folder):
    opened = take_over(folder)
    assert sees_attempt(opened)
    take_over(folder)  # another file with another token
    assert not sees_attempt(opened)
    folder.attempt.unlink()
    assert not sees_attempt(opened)


def test_training_is_fenced(small_config, monkeypatch):
    """A newer attempt that starts while this one evaluates leaves it no right to save."""
    from paceline.engine import run

    saved = run.JobRun.save

    def overtaken(self, **options):
        take_over(RunFolder(self.folder.path))
        saved(self, **options)

    paceline.train(small_config(name="control"))
    monkeypatch.setattr(run.JobRun, "save", overtaken)
    with pytest.raises(RunError, match="newer attempt"):
        paceline.train(small_config(name="overtaken"))
