"""The copy of a run in an object store: where it is, and which checkpoints it holds at each moment."""

import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from uuid import uuid4

import pytest

from paceline.core.config import Config
from paceline.core.errors import StorageError
from paceline.records import attempt
from paceline.records.attempt import choosing_run
from paceline.records.manifest import CHECKSUM, MANIFEST
from paceline.records.mirror import Mirror, choose_mirror, fetch_newest, fetch_run
from paceline.records.storage import Storage
from tests.records.sample_run import saved, started


class HookedStorage(Storage):
    """A store in the memory of this process that calls a function before each write or removal."""

    def __init__(self, address, before_write: Callable[[str], None] = lambda _: None):
        super().__init__(address)
        self.before_write = before_write
        self.refuse_removal_of: str | None = None

    def put(self, file, name):
        self.before_write(name)
        super().put(file, name)

    def remove(self, names):
        if any(name.endswith(f"/{self.refuse_removal_of}") for name in names):
            raise StorageError("the network is gone")
        super().remove(names)

    def checkpoints(self):
        """Return the checkpoints of which the store has any file."""
        return {name.split("/")[1] for name in self.sizes("checkpoints") if name.count("/") == 2}


@pytest.fixture
def place():
    return f"memory://{uuid4().hex}"


def step(number):
    return f"step-{number:08d}"


def test_two_machines_that_start_a_run_of_one_name_take_two_numbers_before_they_save(place, tmp_path):
    assert choose_mirror(started(tmp_path / "a"), place) == f"{place}/r/001"
    assert choose_mirror(started(tmp_path / "b"), place) == f"{place}/r/002"


def test_auto_resume_leaves_a_run_in_the_store_that_has_no_checkpoint_yet(place, tmp_path):
    choose_mirror(started(tmp_path / "a"), place)
    fetch_newest(Config(name="r", runs_dir=tmp_path / "b", upload=place))
    assert not (tmp_path / "b").exists()


def test_a_run_removes_its_own_checkpoints_from_the_store_but_never_those_of_another_run(place, tmp_path):
    other, own = started(tmp_path / "a"), started(tmp_path / "b")
    saved(other, 100)
    Mirror(other, Storage(place)).update()
    saved(own, 10)
    Mirror(own, Storage(place)).update()
    shutil.rmtree(own.checkpoint(10))
    saved(own, 20)
    store = HookedStorage(place)
    Mirror(own, store).update()  # of a later attempt
    assert store.checkpoints() == {step(20), step(100)}


def test_a_checkpoint_that_the_run_removes_during_a_copy_stays_until_the_next_one_is_there(place, tmp_path):
    folder = started(tmp_path)

    def save_20_instead_of_10(name):
        if name.startswith(f"checkpoints/{step(17)}") and folder.checkpoint(10).exists():
            saved(folder, 20)
            shutil.rmtree(folder.checkpoint(10))

    store = HookedStorage(place, save_20_instead_of_10)
    copied = Mirror(folder, store)
    saved(folder, 10)
    copied.update()
    saved(folder, 17)
    copied.update()
    assert store.checkpoints() == {step(10), step(17)}, "17 may call 10 the best"
    copied.update()
    assert store.checkpoints() == {step(17), step(20)}


def test_a_removal_that_failed_halfway_is_finished_by_the_next_update(place, tmp_path):
    folder, store = started(tmp_path), HookedStorage(place)
    copied = Mirror(folder, store)
    saved(folder, 1)
    copied.update()
    shutil.rmtree(folder.checkpoint(1))
    saved(folder, 2)
    store.refuse_removal_of = MANIFEST
    with pytest.raises(StorageError, match="the network is gone"):
        copied.update()
    assert f"checkpoints/{step(1)}/{CHECKSUM}" not in store.sizes(), "its checksum is removed first"
    store.refuse_removal_of = None
    copied.update()
    assert store.checkpoints() == {step(2)}


def test_the_files_of_a_copy_that_was_given_up_are_removed(place, tmp_path):
    folder = started(tmp_path)

    def remove_1(name):
        if name == f"checkpoints/{step(1)}/{MANIFEST}":
            shutil.rmtree(folder.checkpoint(1))
            saved(folder, 2)

    store = HookedStorage(place, remove_1)
    copied = Mirror(folder, store)
    saved(folder, 1)
    copied.update()
    assert store.checkpoints() == {step(1)}
    copied.update()
    assert store.checkpoints() == {step(2)}


def test_a_rank_waits_while_another_copies_the_run_from_the_store(place, tmp_path, monkeypatch):
    folder = started(tmp_path / "a")
    saved(folder, 1)
    address = choose_mirror(folder, place)
    Mirror(folder, Storage(address)).update()
    (tmp_path / "b" / "r").mkdir(parents=True)
    with ExitStack() as other_rank:
        other_rank.enter_context(choosing_run(tmp_path / "b" / "r"))
        wait = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: other_rank.close())
        monkeypatch.setattr(attempt, "time", wait)
        monkeypatch.setattr(attempt, "SECONDS_TO_LOCK", -1.0)
        assert fetch_run(address, tmp_path / "b").saved_steps() == [1]
