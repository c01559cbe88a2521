"""Runs in an object store: copied while they train, resumed from there, despite refused and slow uploads."""

import errno
import shutil
from uuid import uuid4

import pytest

from paceline.core.config import Config
from paceline.core.errors import RunError, SettingError, StorageError
from paceline.core.setting_types import Interval
from paceline.engine import uploader as uploader_module
from paceline.engine.checkpoint import Checkpoints, load_checkpoint
from paceline.engine.entry import train
from paceline.engine.uploader import Uploader
from paceline.records import mirror
from paceline.records.folder import RunFolder
from paceline.records.manifest import CHECKSUM, MANIFEST
from paceline.records.mirror import fetch_run, mirror_address, open_run
from paceline.records.storage import Storage
from tests.object_store import BUCKET, content, names, object_store
from tests.records.sample_run import saved, started

PLACE = f"s3://{BUCKET}/runs"


@pytest.fixture
def store(monkeypatch):
    with object_store(monkeypatch) as served:
        yield served


def settings(runs_dir, **changes):
    values = {"model": "mlp", "steps": 4, "threads": 1, "track": (), "upload": PLACE, "name": "r", "log_every": 1}
    return Config(**values | {"save_every": Interval(2, "step"), "runs_dir": runs_dir} | changes)


def weights(folder):
    state = load_checkpoint(Checkpoints(folder / "checkpoints", keep=2).named("last"))
    return {name: tensor.clone() for name, tensor in state["model"].items()}


def test_a_run_resumed_from_the_store_ends_with_the_bits_of_one_resumed_here(store, tmp_path):
    here = train(settings(tmp_path / "a")).folder
    kept = tmp_path / "kept" / "r" / "001"
    shutil.copytree(here, kept)
    shutil.rmtree(tmp_path / "a")
    there = train(settings(tmp_path / "b", steps=6), resume=f"{PLACE}/r/001")
    local = train(settings(tmp_path / "kept", steps=6, upload=None), resume=kept)
    assert (there.step, local.step) == (6, 6)
    first, second = weights(there.folder), weights(local.folder)
    assert first.keys() == second.keys()
    assert all(first[name].equal(second[name]) for name in first)
    lines = content(store, "runs/r/001/metrics.jsonl").decode().splitlines()
    assert sum('"kind": "step"' in line for line in lines) == 6
    assert {name.split("/")[4] for name in names(store, "runs/r/001/checkpoints/step-")} == {
        path.name for path in (there.folder / "checkpoints").glob("step-*")
    }


def test_auto_resume_finds_the_run_of_a_lost_machine_in_the_store(store, tmp_path):
    train(settings(tmp_path / "lost"))
    result = train(settings(tmp_path / "new", steps=6), resume="auto")
    assert result.step == 6
    assert "resumed after step 4 of 6" in (result.folder / "log.txt").read_text()
    assert mirror_address(RunFolder(result.folder)) == f"{PLACE}/r/001"


def test_another_run_of_the_same_number_gets_the_next_one_in_the_store_and_here(store, tmp_path):
    train(settings(tmp_path / "a", steps=2))
    second = train(settings(tmp_path / "b", steps=2)).folder
    assert second.name == "001"
    assert mirror_address(RunFolder(second)) == f"{PLACE}/r/002"
    assert fetch_run(f"{PLACE}/r/001", tmp_path / "b").path.name == "002"
    assert fetch_run(f"{PLACE}/r/002", tmp_path / "b").path == second
    assert open_run(f"{PLACE}/r", tmp_path / "c").path == tmp_path / "c" / "r" / "002"  # pyright: ignore


def test_a_refused_upload_is_named_and_tried_again_while_training_continues(store, tmp_path, capsys):
    store.refused = 2
    result = train(settings(tmp_path))
    assert result.step == 4
    assert store.num_refused == 2
    printed = capsys.readouterr()
    assert "cannot write" in printed.out + printed.err
    assert "trying again in the background" in printed.out + printed.err
    assert f"runs/r/001/checkpoints/step-00000004/{CHECKSUM}" in names(store)


def test_a_store_that_refuses_to_the_end_costs_only_the_copy(store, tmp_path, capsys):
    store.refused = 10**6
    result = train(settings(tmp_path, steps=2))
    assert result.step == 2
    assert "the newest state is on this machine only" in capsys.readouterr().err
    store.refused = 0


def test_a_slow_upload_holds_up_nothing_and_skips_what_is_removed_meanwhile(store, tmp_path):
    folder = started(tmp_path)
    store.open.clear()
    uploader = Uploader(folder, f"{PLACE}/r/001")
    for step in (1, 2, 3, 4):
        saved(folder, step)
        uploader.notify()  # returns although the store answers nothing
        if step > 2:
            shutil.rmtree(folder.checkpoint(step - 2))
    assert not store.put
    store.open.set()
    uploader.close()
    assert uploader.news() == []
    there = {name.split("/")[4] for name in names(store, "runs/r/001/checkpoints/") if name.endswith(CHECKSUM)}
    assert there == {"step-00000003", "step-00000004"}
    last = [name.rsplit("/", 1)[1] for name in store.put if "step-00000004" in name]
    assert last == ["model.safetensors", MANIFEST, CHECKSUM]


def test_checkpoints_that_were_not_copied_completely_are_not_fetched(store, tmp_path):
    train(settings(tmp_path / "a"))
    store.client.delete_object(Bucket=BUCKET, Key=f"runs/r/001/checkpoints/step-00000004/{CHECKSUM}")
    assert fetch_run(f"{PLACE}/r/001", tmp_path / "b").saved_steps() == [2]


def test_a_flipped_bit_in_the_store_is_found_and_the_checkpoint_before_it_used(store, tmp_path):
    train(settings(tmp_path / "a"))
    name = "runs/r/001/checkpoints/step-00000004/model.safetensors"
    damaged = bytearray(content(store, name))
    damaged[-1] ^= 1
    store.client.put_object(Bucket=BUCKET, Key=name, Body=bytes(damaged))
    result = train(settings(tmp_path / "b", steps=6), resume=f"{PLACE}/r/001")
    assert "trying the previous checkpoint" in (result.folder / "log.txt").read_text()
    assert result.step == 6


def test_what_is_not_in_the_store_is_named(store, tmp_path):
    with pytest.raises(RunError, match=f"{PLACE}/none/001 is not a run"):
        fetch_run(f"{PLACE}/none/001", tmp_path)
    with pytest.raises(StorageError, match="cannot list s3://nowhere/x"):
        fetch_run("s3://nowhere/x", tmp_path)
    with pytest.raises(StorageError, match="cannot list s3://nowhere"):
        train(settings(tmp_path, upload="s3://nowhere/runs"))
    assert not (tmp_path / "r").exists()


def test_a_store_without_its_library_says_what_to_install(tmp_path):
    with pytest.raises(StorageError, match="gdrive") as caught:
        fetch_run("gdrive://x/y", tmp_path)
    assert caught.value.hint is not None


@pytest.mark.parametrize("upload", ["bucket/runs", "/tmp/runs", "s3:/x", ""])
def test_an_upload_to_no_address_is_refused(upload):
    with pytest.raises(SettingError, match="is no address"):
        Config(upload=upload)


def test_a_run_folder_that_cannot_be_read_is_named_and_tried_again(tmp_path, monkeypatch):
    place = f"memory://{uuid4().hex}"
    folder, problems = started(tmp_path), [OSError(errno.ESTALE, "Stale file handle")]
    found = mirror._record_files

    def unreadable_once(*args, **options):
        if problems:
            raise problems.pop()
        return found(*args, **options)

    monkeypatch.setattr(mirror, "_record_files", unreadable_once)
    monkeypatch.setattr(uploader_module, "FIRST_WAIT", 0.01)
    saved(folder, 1)
    uploader = Uploader(folder, place)
    uploader.notify()
    uploader.close()
    (warning,) = uploader.news()
    assert warning.startswith("cannot read the run to copy it: ")
    assert "Stale file handle" in warning
    assert f"checkpoints/step-00000001/{CHECKSUM}" in Storage(place).sizes()
