"""Speed is compared fairly: intervals cover, equal contenders have no winner, real differences are seen."""

import math
from dataclasses import replace

import numpy as np
import pytest

from paceline.analysis.scaling import compare, estimate, smallest_visible, unlike, visible_gap
from paceline.records.bench import Bench, Contender, Sample, Scaling

SETTINGS = {"model": "resnet20", "data": "digits", "global_batch": 128}
SAME_TWICE = {  # images/s of the first five rounds of `paceline bench --modes single --ranks 1,1` on a busy machine
    0: (1893.5, 1340.8, 1254.5, 1433.0, 1272.5),
    1: (1057.4, 1492.5, 1975.8, 828.9, 1053.5),
}


def make_bench(speeds, *, devices=None, scaling: Scaling = "strong", loss=None) -> Bench:
    """Return a benchmark of contenders with these images per second, round by round."""
    devices = dict(enumerate(devices or [1] * len(speeds)))
    contenders = [
        Contender(
            mode="single" if devices[index] == 1 else "ddp",
            per_node=devices[index],
            scaling=None if devices[index] == 1 else scaling,
            global_batch=128 * (devices[index] if scaling == "weak" else 1),
            again=list(devices.values())[:index].count(devices[index]),
        )
        for index in speeds
    ]
    samples = [
        Sample(
            contender=index,
            round=number,
            images_per_s=speed,
            step_s=contenders[index].global_batch / speed,
            train_loss=(loss or {}).get(index, 0.5),
            test_top1=0.9,
        )
        for index, values in speeds.items()
        for number, speed in enumerate(values)
    ]
    return Bench(
        started=0, settings=SETTINGS, steps=60, cut=15, train_images=1280, repeats=5, contenders=contenders,
        samples=samples,
    )  # fmt: skip


def strong(bench):
    group = compare(bench, "strong")
    assert group is not None
    return group


@pytest.mark.parametrize("number", [5, 6, 9, 15, 30])
def test_the_interval_of_a_median_covers_the_true_one_as_often_as_it_says(number):
    draws = np.random.default_rng(number).lognormal(size=(4000, number))  # skewed, as times are
    found = [estimate(list(row)) for row in draws]
    covered = np.mean([e.low <= 1.0 <= e.high for e in found])
    assert found[0].confidence >= (0.95 if number > 5 else 0.93)
    assert covered == pytest.approx(found[0].confidence, abs=0.015)


def test_two_equal_contenders_that_really_ran_have_no_winner():
    group = strong(make_bench(SAME_TWICE))
    assert group.winner is None
    assert group.verdict == "no winner: the intervals of single and single #2 overlap"


@pytest.mark.parametrize("contenders", [2, 4])
@pytest.mark.parametrize("repeats", [4, 5, 8, 12])
def test_equal_contenders_hardly_ever_have_a_winner(contenders, repeats):
    draws = np.random.default_rng(repeats).lognormal(7, 0.1, size=(500, contenders, repeats))
    winners = sum(strong(make_bench(dict(enumerate(trial)))).winner is not None for trial in draws)
    assert winners / len(draws) < 0.05


@pytest.mark.parametrize("repeats", [5, 10])
def test_the_difference_that_is_said_to_be_visible_is_seen_four_times_out_of_five(repeats):
    noise = 0.05
    gap = visible_gap(noise, repeats)
    draws = np.random.default_rng(1).normal(7, noise, size=(500, 2, repeats))
    draws[:, 1] += gap
    seen = np.mean([strong(make_bench(dict(enumerate(np.exp(trial))))).winner == "single #2" for trial in draws])
    assert seen == pytest.approx(0.8, abs=0.06)
    half = draws.copy()
    half[:, 1] -= gap / 2
    rarely = np.mean([strong(make_bench(dict(enumerate(np.exp(trial))))).winner == "single #2" for trial in half])
    assert rarely < seen - 0.3, "half the gap is seen less often"


def test_more_repeats_see_smaller_differences():
    gaps = [visible_gap(0.05, repeats) for repeats in (6, 20, 60)]
    assert gaps == sorted(gaps, reverse=True)
    assert (smallest_visible(make_bench(SAME_TWICE)) or 0) > 0.5, "this machine was very busy"
    assert smallest_visible(make_bench({0: [1.0, 2.0]})) is None


def test_three_repeats_are_too_few_for_a_verdict_and_four_are_enough():
    few = strong(make_bench({0: [100.0] * 3, 1: [150.0] * 3}))
    assert (few.winner, few.verdict) == (None, "no winner: fewer than 4 repeats cannot tell speed from luck")
    assert strong(make_bench({0: [100.0] * 4, 1: [150.0] * 4})).winner == "single #2"


def test_strong_scaling_in_numbers():
    one, two = strong(make_bench({0: [100, 98, 102, 101, 99], 1: [180, 176, 184, 182, 178]}, devices=[1, 2])).standings
    assert (one.speedup.median, one.efficiency.median) == (1, 1)
    assert two.speedup.median == pytest.approx(1.8, abs=0.01)
    assert two.efficiency.median == pytest.approx(0.9, abs=0.005)
    assert two.step_s.median == pytest.approx(128 / 180)
    assert (one.device_seconds, two.device_seconds) == (pytest.approx(12.8), pytest.approx(2 * 1280 / 180))


def test_speed_up_is_taken_within_rounds_so_that_drift_cancels():
    mood = [1.0, 0.5, 0.8, 0.3, 0.9]
    group = strong(make_bench({0: [100 * m for m in mood], 1: [150 * m for m in mood]}, devices=[1, 2]))
    assert group.standings[1].speedup.low == pytest.approx(group.standings[1].speedup.high)
    assert group.standings[1].images_per_s.low < group.standings[1].images_per_s.high / 2


def test_weak_scaling_counts_images_and_stands_apart():
    bench = make_bench({0: [100] * 5, 1: [190] * 5}, devices=[1, 2], scaling="weak")
    weak = compare(bench, "weak")
    assert weak is not None
    assert weak.standings[1].speedup.median == pytest.approx(1.9)
    assert weak.standings[1].efficiency.median == pytest.approx(0.95)
    assert [s.contender.name for s in strong(bench).standings] == ["single"], "the other batch is not strong scaling"
    assert compare(make_bench({0: [100] * 5}), "weak") is None


def test_the_fastest_does_not_win_with_a_worse_loss():
    speeds = {0: [100] * 5, 1: [120] * 5, 2: [300] * 5}
    fast_and_wrong = strong(make_bench(speeds, devices=[1, 2, 3], loss={2: 0.9}))
    assert fast_and_wrong.winner == "ddp 2"
    assert fast_and_wrong.standings[2].wrong == "its training loss is 0.9 where another has 0.5"
    assert strong(make_bench(speeds, devices=[1, 2, 3])).winner == "ddp 3"
    assert strong(make_bench(speeds, devices=[1, 2, 3], loss={2: math.nan})).winner == "ddp 2"


def test_one_device_may_win_and_the_sentence_says_so():
    group = strong(make_bench({0: [100, 99, 101, 100], 1: [50, 51, 49, 50]}, devices=[1, 2]))
    assert group.verdict == "single is fastest, 2.00× of ddp 2: more devices do not pay here"


def test_unlike_work_is_named():
    assert unlike(SETTINGS, SETTINGS | {"lr": 0.2}) == []
    assert unlike(SETTINGS, SETTINGS | {"model": "resnet56"}) == [
        "--model is resnet20 in one and resnet56 in the other"
    ]
    assert unlike(SETTINGS, SETTINGS | {"global_batch": 256}) == ["--global-batch is 128 in one and 256 in the other"]
    assert unlike(SETTINGS, SETTINGS | {"global_batch": 256}, batch=False) == []


def test_a_contender_is_called_by_what_it_is():
    ddp = Contender(mode="ddp", nodes=2, per_node=4, scaling="weak", global_batch=64)
    assert (ddp.name, ddp.folder_name, ddp.words) == ("ddp 2×4", "weak-ddp-2x4", "2 nodes with 4 ranks each")
    assert replace(ddp, nodes=1, again=1).name == "ddp 4 #2"
