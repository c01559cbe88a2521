"""Trials of verify: compared step by step, what is kept on disk, and what to type next. Real kills: test_verify."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from paceline.compare.tensors import compare_values
from paceline.core.setting_types import Interval
from paceline.core.world import World
from paceline.parallel.replicas import Mismatch, save_mismatches
from paceline.records.folder import RunFolder
from paceline.verify.runner import TrialRunner, VerifyError, read_rank_difference
from paceline.verify.trials import FirstDifference, Trial, TrialResult
from paceline.verify.verify_text import trials_verdict

ONE, TWO, THREE = (Trial(world_size=size) for size in (1, 2, 3))


@pytest.fixture
def runner(small_config, tmp_path) -> TrialRunner:
    return TrialRunner(small_config(steps=2), tmp_path / "runs", None)


@pytest.fixture
def train_trial(small_run):
    """Return a function that trains a trial in this process, where verify would start ranks."""

    def train(trial, **settings):
        usual = {"steps": 2, "save_every": Interval(1, "step"), "keep": 9}
        return small_run(name=trial.name, **(usual | settings))

    return train


def difference(trial: Trial, *, ranks: str | None = None) -> TrialResult:
    entry = compare_values("step", 1, 2)
    return TrialResult(trial=trial, num_steps=1, worst=0.0,
                       first=FirstDifference(step=1, part="progress", entry=entry, ranks=ranks))  # fmt: skip


def equal(trial: Trial) -> TrialResult:
    return TrialResult(trial=trial, num_steps=2, worst=0.0, first=None)


def make_trials(folder: Path, *trials: Trial) -> None:
    """Make the folders of trials, each with a log and a run."""
    for trial in trials:
        (folder / trial.name / "001").mkdir(parents=True)
        (folder / trial.name / "log.txt").touch()


def paths(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_the_same_training_is_equal_in_every_step(runner, train_trial):
    train_trial(ONE)
    train_trial(TWO)
    assert runner.compare(ONE, TWO) == equal(TWO)


def test_another_training_differs_from_the_first_step_on(runner, train_trial):
    train_trial(ONE)
    train_trial(TWO, lr=0.02)
    result = runner.compare(ONE, TWO)
    assert result.first is not None
    assert (result.first.step, result.first.part, result.first.ranks) == (1, "weights", None)


def test_a_trial_that_did_not_save_its_last_step_is_no_result(runner, train_trial):
    train_trial(ONE)
    train_trial(TWO, steps=1)
    with pytest.raises(VerifyError, match=r"2 ranks: the last step was not saved, see .*/2-ranks/log\.txt"):
        runner.compare(ONE, TWO)


def test_what_differs_is_kept_with_its_reference(runner):
    make_trials(runner.folder, ONE, TWO, THREE)
    runner.clear(keep=[ONE, THREE])
    assert paths(runner.folder) == [
        "1-rank",
        "1-rank/001",
        "1-rank/log.txt",
        "3-ranks",
        "3-ranks/001",
        "3-ranks/log.txt",
    ]


def test_logs_are_kept_after_a_failure(runner):
    make_trials(runner.folder, ONE)
    runner.clear(keep_logs=True)
    assert paths(runner.folder) == ["1-rank", "1-rank/log.txt"]


def test_nothing_is_kept_where_nothing_differs(runner, tmp_path):
    make_trials(runner.folder, ONE, TWO)
    runner.clear(keep=[ONE])
    assert not runner.folder.exists()
    assert not tmp_path.exists(), "it was empty"


def test_other_runs_beside_the_trials_stay(runner, tmp_path):
    make_trials(runner.folder, ONE)
    (tmp_path / "mine").mkdir()
    runner.clear()
    assert paths(tmp_path) == ["mine"]


def test_the_advice_names_the_command_that_shows_all(runner):
    lines = runner.advice(ONE, [equal(TWO), difference(THREE)])
    folder = runner.folder
    command = f"paceline compare {folder}/1-rank {folder}/3-ranks --checkpoint step-00000001"
    assert lines == [f"to see all differences: {command}"]
    assert runner.advice(ONE, [equal(TWO)]) == []


def test_the_advice_names_the_tensors_of_ranks_that_differ(runner):
    make_trials(runner.folder, TWO)
    RunFolder(runner.folder / TWO.name / "001").config.touch()
    (line,) = runner.advice(ONE, [difference(TWO, ranks="rank 0 against rank 1")])
    assert line == f"the tensors of each rank are in {runner.folder}/2-ranks/001/ranks"


def test_a_difference_by_design_is_no_failure(runner):
    result = replace(difference(TWO), by_design=("batch norm", "dropout"))
    assert runner.advice(ONE, [result]) == []
    assert runner.values([result], kill_seed=3)["agrees"]
    verdict = trials_verdict([result], tolerance=1e-3)
    assert verdict.startswith("--exact order does not cover batch norm and dropout, so the world sizes differ")
    assert trials_verdict([difference(TWO)], tolerance=1e-3).startswith("different: 1 of 1 trials")


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"model": "cnn"}, ("batch norm", "dropout")),
        ({"model": "cnn", "batch_norm": "ghost"}, ()),
        ({"model": "cnn", "exact": "bitwise"}, ()),
        ({"model": "mlp"}, ()),
    ],
)
def test_a_run_records_what_depends_on_the_number_of_ranks(runner, train_trial, settings, found):
    train_trial(ONE, **settings)
    assert runner._by_design(ONE) == found


def test_values_say_whether_all_agree_and_what_is_kept(runner):
    values = runner.values([equal(TWO), difference(THREE)], kill_seed=3)
    assert (values["agrees"], values["kill_seed"], values["kept"]) == (False, 3, None)
    assert [trial["agrees"] for trial in values["trials"]] == [True, False]
    runner.folder.mkdir()
    assert runner.values([equal(TWO)], kill_seed=3)["kept"] == str(runner.folder)
    assert runner.values([equal(TWO)], kill_seed=3)["agrees"]


TENSORS = {"conv.weight": torch.tensor([1.0, 2.0]), "fc.bias": torch.tensor([0.5])}


def test_the_first_tensor_that_differs_is_compared_between_two_sides(tmp_path):
    folder = RunFolder(tmp_path)
    found = [Mismatch(name="conv.weight", groups=((0, 2), (1,))), Mismatch(name="fc.bias", groups=((1, 2), (0,)))]
    for rank in range(3):
        own = TENSORS | ({"conv.weight": torch.tensor([1.0, 2.5])} if rank == 1 else {})
        save_mismatches(found, own, folder, World(rank=rank, size=3), step=7)
    difference = read_rank_difference(folder)
    assert difference is not None
    assert (difference.step, difference.name, difference.sides) == (7, "conv.weight", "ranks 0,2 against rank 1")
    largest = difference.difference.largest
    assert largest is not None
    assert (largest.index, largest.first, largest.second) == ((1,), 2.0, 2.5)


def test_ranks_that_saved_nothing_do_not_differ(tmp_path):
    assert read_rank_difference(RunFolder(tmp_path)) is None
