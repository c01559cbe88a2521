"""Damaged checkpoints and full disks: the last good state is used, with a warning."""

import os
import shutil
import subprocess

import pytest

from paceline.engine import disk_room
from paceline.engine.checkpoint import Checkpoints, load_checkpoint
from paceline.records.folder import RunFolder
from paceline.records.reader import summarise


def truncate(path):
    change(path / "model.safetensors", lambda data: data[:-100])


def change(path, how):
    path.write_bytes(how(path.read_bytes()))


def flipped(data):
    return data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]


def flip_a_bit(path):
    change(path / "optimizer.safetensors", flipped)


def flip_a_bit_of_the_manifest(path):
    change(path / "manifest.json", flipped)


def lose_the_manifest(path):
    (path / "manifest.json").unlink()


def empty(path):
    (path / "model.safetensors").write_bytes(b"")


def lose_a_file(path):
    (path / "model.safetensors").unlink()


def tear_the_manifest(path):
    (path / "manifest.json").write_text('{"file": "step')


CHANGED_MANIFEST = "is damaged: manifest.json or manifest.sha256 has changed since it was written"
FAULTS = [
    pytest.param(truncate, "is damaged: model.safetensors is cut short", id="truncated"),
    pytest.param(empty, "is damaged: model.safetensors is cut short", id="empty"),
    pytest.param(lose_a_file, "is damaged: model.safetensors is missing", id="file missing"),
    pytest.param(flip_a_bit, "is damaged: optimizer.safetensors has changed since it was written", id="one bit"),
    pytest.param(flip_a_bit_of_the_manifest, CHANGED_MANIFEST, id="one bit of the manifest"),
    pytest.param(lose_the_manifest, "cannot be trusted: its manifest.json is missing", id="manifest missing"),
    pytest.param(tear_the_manifest, CHANGED_MANIFEST, id="manifest torn"),
]


def checkpoint(folder, step):
    return folder.checkpoints / f"step-{step:08d}"


def test_a_whole_checkpoint_is_used_without_a_warning(run, own_run):
    answer = run("train", "--resume", own_run.path, "--epochs=3")
    assert answer.code == 0
    assert "warning" not in answer.out
    assert "resumed after step 22 of 33" in answer.out


@pytest.mark.parametrize(("damage", "problem"), FAULTS)
def test_resume_warns_of_a_damaged_checkpoint_and_uses_the_one_before(run, own_run, damage, problem):
    damage(checkpoint(own_run, 22))
    answer = run("train", "--resume", own_run.path, "--epochs=3")
    assert answer.code == 0
    first, second = [line for line in answer.out.splitlines() if line.startswith("warning: ")]
    assert first.startswith(f"warning: {checkpoint(own_run, 22)} ")
    assert problem in first
    assert first.endswith("; trying the previous checkpoint")
    assert second == f"warning: continuing from {checkpoint(own_run, 11)}"
    assert "resumed after step 11 of 33" in answer.out
    assert summarise(own_run).state == "FINISHED"


def test_when_all_checkpoints_are_damaged_the_error_says_so(run, own_run):
    flip_a_bit(checkpoint(own_run, 11))
    truncate(checkpoint(own_run, 22))
    answer = run("train", "--resume", own_run.path, "--epochs=3")
    assert answer.code == 1
    assert answer.message == f"{own_run.checkpoints} has no usable checkpoint: all are damaged"
    assert answer.hint == "start the run again without --resume"


def test_when_there_is_no_checkpoint_the_error_says_so(run, own_run):
    for step in (11, 22):
        shutil.rmtree(checkpoint(own_run, step))
    answer = run("train", "--resume", own_run.path, "--epochs=3")
    assert (answer.code, answer.message) == (1, f"{own_run.checkpoints} has no usable checkpoint: none was saved")


def test_a_damaged_checkpoint_is_not_evaluated(run, own_run):
    best = Checkpoints(own_run.checkpoints, keep=1).named("best")
    assert run("eval", own_run.path).code == 0
    flip_a_bit(best)
    answer = run("eval", own_run.path)
    assert answer.code == 1
    assert answer.message.startswith(f"{best} is damaged: optimizer.safetensors has changed since it was written")


@pytest.fixture
def small_disk(elsewhere):
    """Return a function that mounts a disk of so many kB, or gives the mounted one another size."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    place = elsewhere / "disk"
    place.mkdir()

    def mount(size):
        options = f"size={size}k" if not os.path.ismount(place) else f"remount,size={size}k"
        words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"cannot mount a tmpfs here: {done.stderr.strip()}")
        return place

    yield mount
    subprocess.run(["umount", "--lazy", str(place)], capture_output=True, check=False)


def test_a_full_disk_is_named_and_the_earlier_checkpoint_survives(train, run, small_disk):
    disk = small_disk(180)  # one checkpoint takes 90 kB
    answer = train("--runs-dir", disk)
    folder = RunFolder(disk / "digits-mlp" / "001")
    assert answer.code == 1
    assert answer.message.startswith(f"the disk is full: {checkpoint(folder, 22)} needs more than the ")
    assert answer.message.endswith("; earlier checkpoints are intact")
    assert answer.hint.startswith("free some space, then resume")
    assert load_checkpoint(checkpoint(folder, 11))["progress"]["step"] == 11
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == [
        "best", "last", "step-00000011",
    ]  # fmt: skip
    assert summarise(folder).state == "FAILED"
    small_disk(1000)
    again = run("train", "--resume", folder.path)
    assert again.code == 0
    assert "resumed after step 11 of 22" in again.out
    assert summarise(folder).state == "FINISHED"


@pytest.mark.parametrize("size", [4, 8, 12, 16, 20, 24, 28, 32, 40])
def test_a_disk_that_fills_up_at_any_moment_ends_in_a_message(train, small_disk, size, monkeypatch):
    """Each size lets another file be the first that does not fit; at the start another program left room."""
    monkeypatch.setattr(disk_room, "_space", lambda *_: (10**9, 0))
    answer = train("--runs-dir", small_disk(size))
    assert answer.code in {1, 2}
    assert "the disk is full" in answer.message or "No space left on device" in answer.message


def test_a_disk_with_room_is_no_problem(train, small_disk):
    assert train("--runs-dir", small_disk(1000)).code == 0
