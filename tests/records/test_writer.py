"""Writing beside, then replacing: a reader sees the old file or the new one, and nothing else is left."""

import json
import subprocess
import sys

import pytest

from paceline.core.world import World
from paceline.records.entries import State
from paceline.records.writer import is_locked, locked, replacing, write_json, write_rank


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    return path


def test_a_block_that_ends_well_replaces_the_file(path, tmp_path):
    with replacing(path) as scratch:
        scratch.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(tmp_path) == ["file.txt"]


def test_a_block_that_raises_leaves_the_old_file_and_no_scratch(path, tmp_path):
    def fail():
        with replacing(path) as scratch:
            scratch.write_text("half")
            raise KeyError("planted")

    with pytest.raises(KeyError, match="planted"):
        fail()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file.txt"]


def test_a_block_that_writes_nothing_is_an_error_and_leaves_the_old_file(path):
    with pytest.raises(FileNotFoundError), replacing(path):
        pass
    assert path.read_text() == "old"


def test_a_value_that_is_no_json_leaves_the_old_file(path):
    with pytest.raises(TypeError):
        write_json(path, {"planted": object()})
    assert path.read_text() == "old"
    write_json(path, {"fine": 1})
    assert json.loads(path.read_text()) == {"fine": 1}


def test_a_rank_says_who_and_where_it_is(tmp_path):
    path = tmp_path / "rank-003.json"
    write_rank(path, World(rank=3, size=4, launcher="torchrun"), State.TRAINING, step=17, detail="fine")
    line = json.loads(path.read_text())
    assert {key: line[key] for key in ("state", "rank", "world_size", "launcher", "step", "detail")} == {
        "state": "TRAINING",
        "rank": 3,
        "world_size": 4,
        "launcher": "torchrun",
        "step": 17,
        "detail": "fine",
    }
    assert names(tmp_path) == ["rank-003.json"]


HOLDER = """
import sys
from pathlib import Path
from paceline.records.writer import locked
with locked(Path(sys.argv[1])):
    print("holding", flush=True)
    sys.stdin.readline()
"""


def hold(path):
    """Start a process that holds the lock until its input ends."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "holding\n"
    return holder


def test_a_lock_is_seen_by_other_processes_until_it_is_released(tmp_path):
    holder = hold(tmp_path / "lock")
    assert is_locked(tmp_path / "lock")
    holder.communicate("\n", timeout=60)
    assert not is_locked(tmp_path / "lock")


def test_a_process_that_is_killed_loses_its_lock(tmp_path):
    holder = hold(tmp_path / "lock")
    holder.kill()
    holder.communicate(timeout=60)
    with locked(tmp_path / "lock"):
        assert is_locked(tmp_path / "lock")


def test_looking_at_a_lock_does_not_take_it(tmp_path):
    assert not is_locked(tmp_path / "lock")
    assert not is_locked(tmp_path / "lock")
