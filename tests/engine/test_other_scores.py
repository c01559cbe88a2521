"""The scores of a task that is no classification, wherever people read them: none is taken for an accuracy."""

import os

import pytest

import paceline
from paceline import cli
from paceline.records.folder import RunFolder
from paceline.records.reader import read_metrics

ACCURACY = ("accuracy", "acc ", "top1", "top-1", "top-5")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scores")
    settings = {"data": "shape-centers", "model": "mlp", "steps": 3, "log_every": 1, "runs_dir": folder, "name": "reg"}
    for seed in (0, 1):
        paceline.train(paceline.Config(**settings, seed=seed, track=("tensorboard",), threads=1, lr=0.01))
    return folder


def shown(capsys, *words: str) -> str:
    capsys.readouterr()
    assert cli.run(list(words), os.environ) in (0, 1)  # compare tells that the runs differ
    return capsys.readouterr().out


def test_the_console_shows_the_score_of_the_task(tmp_path, capsys):
    settings = {"data": "shape-centers", "model": "mlp", "steps": 2, "log_every": 1, "runs_dir": tmp_path}
    paceline.train(paceline.Config(**settings, track=(), threads=1))
    text = capsys.readouterr().out
    assert "best checkpoint: lower error" in text
    for start in ("step 1/2", "valid at step 2", "test at step 2"):
        line = next(line for line in text.splitlines() if line.startswith(start))
        assert "  error " in line
        assert not [word for word in ACCURACY if word in line]


def test_records_and_tensorboard_have_the_score_of_the_task(runs):
    (record,) = [each for each in read_metrics(RunFolder(runs / "reg" / "001")) if each["kind"] == "eval"][:1]
    assert {"loss", "error"} <= record.keys()
    assert not {"top1", "top5"} & record.keys()
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    (events,) = {path.parent for path in (runs / "reg" / "001").rglob("events.out*")}
    reader = accumulator.EventAccumulator(str(events))
    reader.Reload()
    tags = set(reader.Tags()["scalars"])
    assert {"error/train", "error/val", "error/test", "best/error", "test/error"} <= tags
    assert not [tag for tag in tags if "acc" in tag]


@pytest.mark.parametrize("command", ["runs", "eval", "report"])
def test_commands_show_the_score_of_the_task(runs, capsys, command, tmp_path):
    one = str(runs / "reg" / "001")
    page = tmp_path / "page.html"
    words = {
        "runs": ["runs", "--runs-dir", str(runs)],
        "eval": ["eval", one],
        "report": ["report", one, str(runs / "reg" / "002"), "--out", str(page)],
    }[command]
    text = shown(capsys, *words) + (page.read_text() if page.exists() else "")
    assert "rror" in text
    assert not [word for word in ACCURACY if word in text]


def test_two_runs_are_compared_by_the_score_of_their_task(runs, capsys):
    text = shown(capsys, "runs", "compare", str(runs / "reg" / "001"), str(runs / "reg" / "002"))
    assert "best valid error" in text
    assert "test error" in text
    assert "acc" not in text
