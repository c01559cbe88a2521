"""How runs learned: which lines are drawn, under which names, over epochs."""

import math
from dataclasses import replace

import pytest

from paceline.report.learning_curves import MOST_RUNS, curves, learning_table, names_of_runs
from tests.report.sample_runs import make_run


def labels(plot):
    return [(line.label, line.style) for line in plot.lines]


def test_a_run_has_loss_accuracy_and_learning_rate():
    loss, accuracy, rate = curves([make_run()])
    assert labels(loss) == labels(accuracy) == [("train", "run-0 faint"), ("valid", "run-0")]
    assert [line.note for line in accuracy.lines] == ["90.0%", "88.0%"]
    assert (rate.title, labels(rate)) == ("Learning rate", [("", "run-0")])
    assert [tick.text for tick in loss.x_ticks] == ["0", "1", "2", "3", "4", "5"]
    assert loss.alt == "Loss over epochs: train ends at 0.460; valid ends at 0.506."


def test_several_runs_are_told_apart_by_their_names():
    loss, _, rate = curves([make_run("a"), make_run("b")])
    assert [label for label in labels(loss) if label[0]] == [("a", "run-0"), ("b", "run-1")]
    assert labels(rate) == [("", "run-0")], "both are the same"


def test_long_names_stand_in_a_key():
    runs = [make_run("a"), make_run("a-very-long-name/001")]
    assert [key.name for key in names_of_runs(runs)] == ["a", "a-very-long-name/001"]
    assert {label for label, _ in labels(curves(runs)[0])} == {""}
    assert names_of_runs(runs[1:]) == names_of_runs([make_run("a"), make_run("b")]) == []


def test_only_the_first_runs_are_drawn():
    runs = [make_run(str(number)) for number in range(MOST_RUNS + 2)]
    assert len(curves(runs)[1].lines) == 2 * MOST_RUNS


def test_evaluations_between_epochs_are_a_curve_without_those_of_the_test_samples():
    run = make_run()
    steps = [record for record in run.records if record["kind"] == "step"]
    scores = [("valid", 20, 0.7), ("valid", 40, 0.8), ("test", 50, 0.1)]
    evals = [{"kind": "eval", "split": split, "step": step, "epoch": 1, "loss": 1.0, "top1": top1}
             for split, step, top1 in scores]  # fmt: skip
    _, accuracy, _ = curves([replace(run, records=[*steps, *evals])])
    assert (accuracy.lines[1].label, accuracy.lines[1].note) == ("valid", "80.0%")


def test_a_run_without_a_whole_epoch_counts_the_steps_of_one():
    run = make_run(global_batch=128)
    begun = [record for record in run.records if record["kind"] == "step"][:2]
    (loss, *_) = curves([replace(run, records=begun)])
    assert loss.x_ticks[-1].text == "1.5", "20 steps, of which an epoch of 1,293 samples has 11"
    assert curves([replace(run, records=[])]) == []


def test_a_table_has_a_row_for_every_epoch():
    table = learning_table(make_run("mine"))
    assert len(table.rows) == 5
    assert dict(zip(table.head, table.rows[1], strict=True)) == {
        "step": "20", "epoch": "2", "train_loss": "1.15", "train_top1": "0.75", "valid_loss": "1.265",
        "valid_top1": "0.73", "valid_top5": "1", "samples_per_s": "1000",
    }  # fmt: skip


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_validation_loss_that_is_not_finite_is_left_out_of_its_curve(value):
    run = make_run()
    last = max(index for index, record in enumerate(run.records) if record["kind"] == "epoch")
    records = [record | ({"valid_loss": value} if index == last else {}) for index, record in enumerate(run.records)]
    (loss, *_), (expected, *_) = curves([replace(run, records=records)]), curves([run])
    assert loss.lines[0].path == expected.lines[0].path
    assert loss.lines[1].note == "0.632", "that of the epoch before"
