"""A tracker that fails warns once and never stops training."""

import shutil
from pathlib import Path

import pytest

import paceline
from paceline.records.entries import State
from paceline.records.folder import RunFolder
from paceline.records.reader import list_runs


@pytest.fixture
def again(finished_run, elsewhere, one_thread, capfd):
    """Return a function that plants a fault into a finished run, trains another epoch and returns what was said."""
    folder = RunFolder(shutil.copytree(finished_run.path, elsewhere / "runs" / "demo" / "001"))
    config = paceline.Config(
        model="mlp", epochs=4, threads=1, device="cpu", log_every=2, track=("tensorboard",), runs_dir=Path("runs")
    )

    def train_on(fault) -> list[str]:
        fault(folder)
        result = paceline.train(config, resume=folder.path)
        assert (result.state, result.step) == (State.FINISHED, 44)
        out, err = capfd.readouterr()
        assert err == ""
        return [line.removeprefix("warning: ") for line in out.splitlines() if line.startswith("warning: ")]

    return train_on


def test_without_a_fault_there_is_no_warning(again):
    assert again(lambda _folder: None) == []


def test_a_file_in_place_of_the_tensorboard_folder(again):
    (warning,) = again(lambda folder: folder.tensorboard.write_text("in the way"))
    assert warning.startswith("tensorboard is off for the rest of this run: FileExistsError: ")


def test_a_folder_in_place_of_the_metrics_file(again):
    def plant(folder):
        folder.metrics.unlink()
        folder.metrics.mkdir()

    (warning,) = again(plant)
    assert warning.startswith("metrics.jsonl is off for the rest of this run: IsADirectoryError: ")


def test_a_log_file_on_a_full_disk(again):
    def plant(folder):
        folder.log.unlink()
        folder.log.symlink_to("/dev/full")

    (warning,) = again(plant)
    assert warning.startswith("log.txt is off for the rest of this run: OSError: [Errno 28] No space left on device")
    assert list_runs(Path("runs"))[0].state == "FINISHED"
