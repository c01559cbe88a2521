"""The index of runs: unchanged runs are not read again, and every change shows."""

import json
import os
import shutil

import pytest

from paceline.core.config import Config
from paceline.core.load import write_config
from paceline.core.world import World
from paceline.records import run_index
from paceline.records.entries import State
from paceline.records.folder import RunFolder, index_of_runs
from paceline.records.run_index import list_runs
from paceline.records.writer import write_rank


def make_run(runs_dir, name, *, top1=0.5, state=State.FINISHED, **settings):
    folder = RunFolder(runs_dir / name / "001")
    folder.rank(0).parent.mkdir(parents=True)
    write_config(Config(**settings).resolved(), folder.config)
    folder.environment.write_text(json.dumps([{"time": len(name), "world_size": 1}]))
    score = {"loss": 1.0, "top1": top1, "top5": 1.0, "samples": 10}
    epoch = {"kind": "epoch", "epoch": 1, "step": 7, "is_best": True, "samples_per_s": 9.0}
    folder.metrics.write_text(json.dumps(epoch | {f"valid_{key}": value for key, value in score.items()}) + "\n")
    write_rank(folder.rank(0), World(pid=os.getpid()), state, step=7, doing="", detail="")
    return folder


@pytest.fixture
def runs_dir(tmp_path, monkeypatch):
    monkeypatch.setattr(run_index, "LEAST_INDEXED", 2)
    for number in range(3):
        make_run(tmp_path, f"run-{'x' * number}", epochs=number + 1, track=())
    return tmp_path


@pytest.fixture
def read(monkeypatch):
    """Return the runs that were read in full."""
    folders, honest = [], run_index.summarise
    monkeypatch.setattr(run_index, "summarise", lambda folder: folders.append(folder) or honest(folder))
    return folders


def test_the_index_gives_the_same_summaries_without_reading_a_run(runs_dir, read):
    first = list_runs(runs_dir)
    assert len(read) == 3
    read.clear()
    assert list_runs(runs_dir) == first
    assert read == []
    assert [run.config.epochs for run in first] == [1, 2, 3]


@pytest.mark.parametrize("name", ["config", "environment", "metrics"])
def test_a_changed_run_is_read_again(runs_dir, read, name):
    list_runs(runs_dir)
    read.clear()
    path = getattr(RunFolder(runs_dir / "run-x" / "001"), name)
    path.write_text(path.read_text() + "\n")
    list_runs(runs_dir)
    assert [folder.name for folder in read] == ["run-x/001"]


def test_a_new_score_a_new_run_and_a_removed_run_show(runs_dir):
    list_runs(runs_dir)
    shutil.rmtree(runs_dir / "run-x")
    make_run(runs_dir, "run-x", top1=0.75)
    make_run(runs_dir, "run-new")
    shutil.rmtree(runs_dir / "run-")
    found = {run.folder.name: run.best["top1"] for run in list_runs(runs_dir) if run.best is not None}
    assert found == {"run-x/001": 0.75, "run-xx/001": 0.5, "run-new/001": 0.5}
    assert len(list_runs(runs_dir)) == 3


def test_the_death_of_a_process_shows_although_no_file_changes(runs_dir, read, monkeypatch):
    make_run(runs_dir, "alive", state=State.TRAINING)
    assert [run.state for run in list_runs(runs_dir) if "alive" in run.folder.name] == ["TRAINING"]
    read.clear()
    monkeypatch.setattr("paceline.records.reader.is_alive", lambda _rank: False)
    assert [run.state for run in list_runs(runs_dir) if "alive" in run.folder.name] == ["LOST"]
    assert read == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 0, "runs": {"a": 1}}', '{"version": 1}', '{"version": 1, "runs": []}']
)
def test_a_damaged_index_is_replaced(runs_dir, text):
    before = list_runs(runs_dir)
    index_of_runs(runs_dir).write_text(text)
    assert list_runs(runs_dir) == before
    assert json.loads(index_of_runs(runs_dir).read_text())["version"] == run_index.VERSION


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: {},
        lambda entry: entry["summary"],
        lambda entry: {"stamp": entry["stamp"]},
        lambda entry: entry | {"summary": []},
        lambda entry: entry | {"summary": entry["summary"] | {"step": "7"}},
        lambda entry: entry | {"summary": entry["summary"] | {"unknown": 7}},
        lambda entry: entry | {"summary": entry["summary"] | {"config": {"unknown": 7}}},
    ],
)
def test_a_run_with_a_damaged_entry_is_read_again(runs_dir, read, damage):
    before = list_runs(runs_dir)
    index = json.loads(index_of_runs(runs_dir).read_text())
    name = next(name for name in index["runs"] if "run-x/" in name)
    whole = index["runs"][name]
    index["runs"][name] = damage(whole)
    index_of_runs(runs_dir).write_text(json.dumps(index))
    read.clear()
    assert list_runs(runs_dir) == before
    assert [folder.name for folder in read] == ["run-x/001"]
    assert json.loads(index_of_runs(runs_dir).read_text())["runs"][name] == whole


def test_few_runs_have_no_index(tmp_path):
    make_run(tmp_path, "only")
    assert len(list_runs(tmp_path)) == 1
    assert not index_of_runs(tmp_path).exists()
