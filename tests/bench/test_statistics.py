"""Speed is compared fairly: intervals cover, equal variants have no winner, real differences are seen."""

import math
from dataclasses import replace

import numpy as np
import pytest

from paceline.bench.bench_folder import Variant
from paceline.bench.statistics import compare_variants, median_interval, smallest_visible, visible_gap, work_differences
from tests.bench.sample_bench import SETTINGS, make_bench

SAME_TWICE = {  # samples/s of the first five rounds of `paceline bench --modes single --ranks 1,1` on a busy machine
    0: (1893.5, 1340.8, 1254.5, 1433.0, 1272.5),
    1: (1057.4, 1492.5, 1975.8, 828.9, 1053.5),
}


def strong(bench):
    group = compare_variants(bench, "strong")
    assert group is not None
    return group


@pytest.mark.parametrize("number", [5, 6, 9, 15, 30])
def test_the_interval_of_a_median_covers_the_true_one_as_often_as_it_says(number):
    draws = np.random.default_rng(number).lognormal(size=(4000, number))  # skewed, as times are
    found = [median_interval(list(values)) for values in draws]
    covered = np.mean([e.low <= 1.0 <= e.high for e in found])
    assert found[0].confidence >= (0.95 if number > 5 else 0.93)
    assert covered == pytest.approx(found[0].confidence, abs=0.015)


def test_two_equal_variants_that_really_ran_have_no_winner():
    group = strong(make_bench(SAME_TWICE))
    assert group.winner is None
    assert group.verdict == "no winner: the intervals of single and single #2 overlap"


@pytest.mark.parametrize("variants", [2, 4])
@pytest.mark.parametrize("repeats", [4, 5, 8, 12])
def test_equal_variants_hardly_ever_have_a_winner(variants, repeats):
    draws = np.random.default_rng(repeats).lognormal(7, 0.1, size=(500, variants, repeats))
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
    assert (few.winner, few.verdict) == (None, "no winner: fewer than 4 repeats cannot tell speed from noise")
    assert strong(make_bench({0: [100.0] * 4, 1: [150.0] * 4})).winner == "single #2"


def test_strong_scaling_in_numbers():
    one, two = strong(make_bench({0: [100, 98, 102, 101, 99], 1: [180, 176, 184, 182, 178]}, devices=[1, 2])).results
    assert (one.speedup.median, one.efficiency.median) == (1, 1)
    assert two.speedup.median == pytest.approx(1.8, abs=0.01)
    assert two.efficiency.median == pytest.approx(0.9, abs=0.005)
    assert two.step_s.median == pytest.approx(128 / 180)
    assert (one.device_seconds, two.device_seconds) == (pytest.approx(12.8), pytest.approx(2 * 1280 / 180))


def test_speed_up_is_taken_within_rounds_so_that_drift_cancels():
    mood = [1.0, 0.5, 0.8, 0.3, 0.9]
    group = strong(make_bench({0: [100 * m for m in mood], 1: [150 * m for m in mood]}, devices=[1, 2]))
    assert group.results[1].speedup.low == pytest.approx(group.results[1].speedup.high)
    assert group.results[1].samples_per_s.low < group.results[1].samples_per_s.high / 2


def test_weak_scaling_counts_samples_and_stands_apart():
    bench = make_bench({0: [100] * 5, 1: [190] * 5}, devices=[1, 2], scaling="weak")
    weak = compare_variants(bench, "weak")
    assert weak is not None
    assert weak.results[1].speedup.median == pytest.approx(1.9)
    assert weak.results[1].efficiency.median == pytest.approx(0.95)
    assert [s.variant.name for s in strong(bench).results] == ["single"], "the other batch is not strong scaling"
    assert compare_variants(make_bench({0: [100] * 5}), "weak") is None


def test_the_fastest_does_not_win_with_a_worse_loss():
    speeds = {0: [100] * 5, 1: [120] * 5, 2: [300] * 5}
    fast_and_wrong = strong(make_bench(speeds, devices=[1, 2, 3], loss={2: 0.9}))
    assert fast_and_wrong.winner == "ddp 2"
    assert fast_and_wrong.results[2].wrong == "its training loss is 0.9 where another has 0.5"
    assert strong(make_bench(speeds, devices=[1, 2, 3])).winner == "ddp 3"
    assert strong(make_bench(speeds, devices=[1, 2, 3], loss={2: math.nan})).winner == "ddp 2"


def test_one_device_may_win_and_the_sentence_says_so():
    group = strong(make_bench({0: [100, 99, 101, 100], 1: [50, 51, 49, 50]}, devices=[1, 2]))
    assert group.verdict == "single is fastest, 2.00× of ddp 2: more devices do not help here"


def test_unlike_work_is_named():
    assert work_differences(SETTINGS, SETTINGS | {"lr": 0.2}) == []
    assert work_differences(SETTINGS, SETTINGS | {"model": "resnet56"}) == [
        "--model is resnet20 in one and resnet56 in the other"
    ]
    assert work_differences(SETTINGS, SETTINGS | {"global_batch": 256}) == [
        "--global-batch is 128 in one and 256 in the other"
    ]
    assert work_differences(SETTINGS, SETTINGS | {"global_batch": 256}, batch=False) == []


def test_a_variant_is_called_by_what_it_is():
    ddp = Variant(mode="ddp", nodes=2, per_node=4, scaling="weak", global_batch=64)
    assert (ddp.name, ddp.folder_name, ddp.words) == ("ddp 2×4", "weak-ddp-2x4", "2 nodes with 4 ranks each")
    assert replace(ddp, nodes=1, again=1).name == "ddp 4 #2"
