"""What Python gets back: a short repr with the scores, the history as rows, and help that fits a screen."""

import inspect
from dataclasses import replace

import pytest

import paceline
from paceline.records.entries import RunResult, State


@pytest.fixture
def result(finished_run) -> RunResult:
    scores = paceline.Scores(by_name={"loss": 0.25, "top1": 0.9}, samples=360)
    return RunResult(
        folder=finished_run.path, state=State.FINISHED, step=22, epochs=2.0, best=scores, test=scores, seconds=3.0
    )


def test_a_result_is_shown_with_its_scores(result):
    text = repr(result)
    assert text.startswith(f"<RunResult {result.folder}, finished, 2 epochs in 3.00s, best loss 0.2500  acc 90.00%")
    assert len(text) < 200 + len(str(result.folder))
    assert "test" not in repr(replace(result, test=None)).replace(str(result.folder), "")
    assert repr(result.test) == "Scores(loss=0.25, top1=0.9, samples=360)"


def test_the_history_has_a_row_per_epoch(result):
    rows = result.history
    assert [(row["epoch"], row["step"]) for row in rows] == [(1, 11), (2, 22)]
    assert {"train_loss", "train_top1", "valid_loss", "valid_top1"} <= set(rows[0])


def test_help_of_the_public_functions_shows_names_not_all_settings():
    for function in (paceline.train, paceline.launch, paceline.start_run):
        assert len(str(inspect.signature(function))) < 700
    assert "Config()" in str(inspect.signature(paceline.train))
