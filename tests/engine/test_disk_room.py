"""Room for checkpoints: its size is known before the first step, and a disk that is too small is refused then."""

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from paceline.core.errors import RunError
from paceline.engine import disk_room
from paceline.records.folder import RunFolder, list_checkpoints

Usage = namedtuple("Usage", "total used free")


def stored_bytes(folder: Path) -> int:
    path = list_checkpoints(RunFolder(folder).checkpoints)[-1]
    return sum(each.stat().st_size for each in path.glob("*.safetensors"))


@pytest.mark.parametrize(
    "settings",
    [{}, {"momentum": 0.0}, {"optimizer": "adamw", "ema": 0.9}, {"exact": "bitwise"}],
    ids=["sgd", "no momentum", "adamw and ema", "bitwise"],
)
def test_the_size_of_a_checkpoint_is_known_before_the_first_step(small_run, monkeypatch, settings):
    found, honest = [], disk_room.checkpoint_bytes
    monkeypatch.setattr(disk_room, "checkpoint_bytes", lambda *args: found.append(honest(*args)) or found[-1])
    result = small_run(**settings)
    headers = 4096  # names, types and shapes of each file
    assert found[0] <= stored_bytes(result.folder) <= found[0] + 3 * headers
    assert "per checkpoint" in (result.folder / "log.txt").read_text()


@pytest.fixture
def disk(monkeypatch):
    """Return a function that sets how many bytes are available."""
    return lambda free: monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 0, free))


def test_a_disk_without_room_for_a_checkpoint_is_refused_before_there_is_a_run(small_run, disk, tmp_path):
    disk(1000)
    with pytest.raises(RunError, match=r"has 1 kB available, but a checkpoint of this run takes [\d.]+ kB") as caught:
        small_run()
    assert caught.value.exit_code == 2
    assert "choose another --runs-dir" in (caught.value.hint or "")
    assert not (tmp_path / "runs").exists()


def test_a_disk_with_room_for_some_checkpoints_only_gives_a_warning(small_run, disk):
    size = stored_bytes(small_run().folder)
    disk(2 * size)
    log = (small_run(keep=3).folder / "log.txt").read_text()
    assert "but --keep 3, the best checkpoint and one being written can take" in log
    disk(20 * size)
    assert "can take" not in (small_run(keep=3).folder / "log.txt").read_text()


def test_what_an_interrupted_save_left_counts_as_available(small_run, tmp_path):
    run = RunFolder(small_run().folder)
    free, occupied = disk_room._space(run.path, run)
    assert occupied >= stored_bytes(run.path)
    left = run.checkpoints / ".step-00000099.host.1.new.partial"
    left.mkdir()
    (left / "model.safetensors").write_bytes(bytes(1 << 24))
    again, _ = disk_room._space(run.path, run)
    assert again == pytest.approx(free, abs=1 << 23), "the disk lost 16 MB, which the next save frees"
