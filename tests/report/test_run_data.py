"""What a page says of a run: devices, speed, and the phase that makes it slower than another."""

import shutil
from dataclasses import replace

import pytest

from paceline.records.folder import RunFolder
from paceline.records.profile import write_profile
from paceline.report.run_data import contrast_sentence, read_run_data, run_forecasts, run_sentence, seeds_sentence
from tests.report.sample_runs import make_profile, make_run, make_split

ALONE = {"communication": 0, "straggler": 0}


def with_environment(**values):
    run = make_run()
    return replace(run, split=None, environments=[values])


@pytest.mark.parametrize(
    ("environment", "where"),
    [
        ({"world_size": 4, "mode": "ddp (4 ranks)"}, "4 ranks"),
        ({"world_size": 1, "mode": "dp", "num_devices": 2}, "2 devices of one process"),
        ({"world_size": 1, "mode": "dp (asked for, over 3 devices of one process)"}, "3 devices of one process"),
        ({}, "1 rank"),
    ],
)
def test_devices_come_from_the_environment_before_the_first_record(environment, where):
    assert with_environment(**environment).where == where


def test_ranks_and_nodes_come_from_the_records():
    assert make_run(split=make_split(ranks=8, hosts=2)).where == "8 ranks on 2 nodes"


def test_a_sample_takes_its_part_of_a_step_of_the_global_batch():
    run = make_run(split=make_split(ranks=1, **ALONE), global_batch=64)
    assert run.sample_seconds == pytest.approx(0.068 / 64)
    assert with_environment().sample_seconds is None


def test_a_run_without_a_score_or_a_speed_says_its_state():
    run = make_run()
    assert run_sentence(run) == "98.6% of the test samples right, 1,000 samples/s on 2 ranks"
    valid = replace(run, summary=replace(run.summary, test=None, samples_per_s=None))
    assert run_sentence(valid) == "98.6% of the held-out samples right"
    begun = replace(run, summary=replace(run.summary, test=None, best=None, samples_per_s=None, state="TRAINING"))
    assert run_sentence(begun) == "nothing measured yet: the run is training"


@pytest.mark.parametrize(
    ("milliseconds", "slower", "phase"),
    [
        (
            {"forward": 40},
            "second: 29% slower per sample than first (95% interval 1.29–1.29×)",
            "the forward pass is 40 of 88 ms per step",
        ),
        (
            {"forward": 90},
            "second: 2.0× slower per sample than first (95% interval 2.03–2.03×)",
            "the forward pass is 90 of 138 ms per step",
        ),
        (
            {"backward": 20},
            "first: 1.6× slower per sample than second (95% interval 1.58–1.58×)",
            "the backward pass is 45 of 68 ms per step",
        ),
    ],
)
def test_the_slower_of_two_runs_is_named_with_the_phase_that_takes_longer(milliseconds, slower, phase):
    first = make_run("first", split=make_split(ranks=1, **ALONE))
    second = make_run("second", split=make_split(ranks=1, **(ALONE | milliseconds)))
    assert contrast_sentence(first, second) == f"{slower}; {phase} (100% of the slowdown)"


def test_differences_of_a_few_percent_are_none():
    first = make_run("first", split=make_split(ranks=1, **ALONE))
    second = make_run("second", split=make_split(ranks=1, **(ALONE | {"forward": 22})))
    assert contrast_sentence(first, second) == "second is as fast as first, within 3%"


def test_noise_and_few_steps_are_no_difference_in_speed():
    first = make_run("first", split=make_split(ranks=1, noise=0.5, **ALONE))
    slower = make_split(ranks=1, **(ALONE | {"forward": 40}))
    second = make_run("second", split=slower)
    assert contrast_sentence(first, second) == (
        "no difference in speed between first and second is certain: 95% interval 0.42–1.42×"
    )
    short = make_run("short", split=make_split(ranks=1, steps=29, **ALONE))
    assert contrast_sentence(second, short) == (
        "short: 29 steps after the first interval are too few to compare speeds; 30 are needed"
    )
    once = make_run("once", split=replace(slower, num_intervals=3))
    assert "3 intervals of records are too few to compare speeds; 4 are needed" in str(contrast_sentence(once, second))


def test_runs_that_differ_by_seed_only_are_told_as_mean_and_deviation():
    runs = []
    for seed, top1 in enumerate((0.9, 0.94)):
        run = make_run(str(seed), seed=seed)
        runs.append(replace(run, summary=replace(run.summary, test={**(run.summary.test or {}), "top1": top1})))
    assert seeds_sentence(runs) == "test acc 92.00% ± 2.83%: mean ± deviation of 2 seeds"
    assert seeds_sentence([runs[0], make_run("other", seed=1, lr=0.2)]) is None
    assert seeds_sentence([runs[0], runs[0]]) is None


def test_more_devices_have_an_efficiency_and_the_phase_that_costs_it():
    first = make_run("first", split=make_split(ranks=1, **ALONE), global_batch=64)
    second = make_run("second", split=make_split(ranks=2))
    assert contrast_sentence(first, second) == (
        "second: 1.31× as fast as first on 2× the devices (95% interval 1.31–1.31×), 66% efficient; "
        "exposed communication is 30 of 104 ms per step"
    )


def test_runs_without_records_are_not_compared():
    assert contrast_sentence(make_run(), with_environment()) is None


def test_a_run_folder_is_read_whole(finished_run):
    run = read_run_data(finished_run, "mine")
    assert (run.label, run.num_ranks, run.num_devices, run.profile) == ("mine", 1, 1, None)
    assert {record["kind"] for record in run.records} == {"step", "epoch", "eval"}
    assert run.split is not None
    assert run.split.total.steps == run.summary.step == 22


@pytest.fixture
def profiled(finished_run, tmp_path):
    """Return a function that gives a run a profile of so many ranks."""

    def with_profile(ranks):
        folder = RunFolder(shutil.copytree(finished_run.path, tmp_path / str(ranks)))
        write_profile(folder, make_profile(ranks=ranks))
        return read_run_data(folder, "mine")

    return with_profile


def test_a_profile_of_two_ranks_forecasts_strong_and_weak_scaling(profiled):
    strong, weak = run_forecasts(profiled(2))
    assert (strong.label, weak.label) == ("strong", "weak")
    assert list(strong.efficiency) == [1, 2, 4, 8, 16, 32, 64]
    assert strong.efficiency[1] == (1, 1, 1)
    assert strong.efficiency[64][0] < weak.efficiency[64][0] < weak.efficiency[2][0], "its share of a batch shrinks"
    value, low, high = weak.efficiency[8]
    assert weak.speedup()[8] == (8 * value, 8 * low, 8 * high)


def test_a_profile_of_one_rank_forecasts_nothing(profiled):
    """It has buckets, but no link was measured."""
    assert run_forecasts(profiled(1)) == []
    assert run_forecasts(make_run()) == []
