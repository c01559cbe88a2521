"""A tracker that fails warns once and never stops training; records as named scalars are the same for all."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import paceline
from paceline.records.entries import EvalRecord, State
from paceline.records.folder import RunFolder
from paceline.records.run_index import list_runs
from paceline.trackers.base import Guarded, scalars
from tests.trackers.sample_records import EPOCH, RUN, STEP, VALID


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
    assert warning.startswith("tensorboard is disabled for the rest of this run: FileExistsError: ")


def test_a_folder_in_place_of_the_metrics_file(again):
    def plant(folder):
        folder.metrics.unlink()
        folder.metrics.mkdir()

    (warning,) = again(plant)
    assert warning.startswith("metrics.jsonl is disabled for the rest of this run: IsADirectoryError: ")


def test_a_log_file_on_a_full_disk(again):
    def plant(folder):
        folder.log.unlink()
        folder.log.symlink_to("/dev/full")

    (warning,) = again(plant)
    assert warning == "log.txt waits until there is room on the disk: No space left on device"
    assert list_runs(Path("runs"))[0].state == "FINISHED"


class Failing:
    """A tracker that fails from a given call on."""

    name = "planted"

    def __init__(self, works_for):
        self.left = works_for
        self.calls = []

    def _call(self, name):
        self.calls.append(name)
        self.left -= 1
        if self.left < 0:
            raise ValueError("broken")

    def open(self, run):
        self._call("open")

    def record(self, entry):
        self._call("record")

    def close(self, result):
        self._call("close")


@pytest.mark.parametrize(("works_for", "num_warnings"), [(0, 1), (1, 1), (2, 1), (3, 1), (4, 0)])
def test_wherever_a_tracker_fails_it_is_reported_once_and_closed(works_for, num_warnings):
    warnings = []
    tracker = Failing(works_for)
    guarded = Guarded(tracker, warnings.append)
    guarded.open(RUN)
    guarded.record(EPOCH)
    guarded.record(EPOCH)
    guarded.close(None)
    assert warnings == ["planted is disabled for the rest of this run: ValueError: broken"] * num_warnings
    assert tracker.calls == [*["open", "record", "record"][: works_for + 1], "close"]


def test_a_step_has_its_score_rate_speed_and_utilisation():
    assert scalars(replace(STEP, utilisation={"cpu_percent": 90.0})) == {
        "loss/train": 0.5,
        "acc1/train": 0.75,
        "acc5/train": 1.0,
        "lr": 0.05,
        "samples_per_s": 1280.0,
        "utilisation/cpu_percent": 90.0,
    }


def test_an_epoch_has_names_that_no_step_has():
    found = scalars(EPOCH)
    assert not set(found) & set(scalars(STEP))
    assert (found["epoch/acc1/train"], found["acc1/val"]) == (0.75, 0.9)
    assert not any(name.endswith("/val") for name in scalars(replace(EPOCH, valid=None)))


@pytest.mark.parametrize(("split", "name"), [("valid", "val"), ("test", "test")])
def test_an_evaluation_is_named_by_its_split(split, name):
    record = EvalRecord(step=15, epoch=2, split=split, score=VALID, is_best=True, seconds=1.0, split_samples=100)
    assert scalars(record) == {f"loss/{name}": 0.5, f"acc1/{name}": 0.9, f"acc5/{name}": 1.0}
