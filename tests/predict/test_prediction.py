"""Predictions: intervals, break-even bandwidth, best batch, cost, and accumulation."""

import math
from dataclasses import replace

import pytest

from paceline.predict.fabric import Fabric, Link
from paceline.predict.prediction import predict
from paceline.predict.simulate import Overhead, Workload
from paceline.predict.uncertainty import Case, Uncertainty

SURE = Uncertainty()
WORK = Workload(forward=1.0, backward=2.0, update=0.0, ready=(1.0,), sizes=(1e6,), samples_per_rank=30)


def case(bandwidth=1e6, **changes):
    return replace(Case(workload=WORK, fabric=Fabric(inter=Link(bandwidth=bandwidth)), uncertainty=SURE), **changes)


def test_throughput_and_efficiency_follow_from_the_step():
    two = predict(case(), 2)
    assert two.step.value == pytest.approx(4.0)
    assert two.throughput.value == pytest.approx(15)
    assert two.efficiency.value == pytest.approx(0.75)
    assert (two.step.low, two.step.high) == (two.step.value, two.step.value), "nothing is uncertain"


def test_with_one_global_batch_each_rank_has_its_share():
    two = predict(case(global_batch=30), 2)
    assert two.samples_per_rank == 15
    assert two.step.value == pytest.approx(1.5 + 1.0)
    assert two.efficiency.value == pytest.approx(3.0 / (2 * 2.5))


def test_two_ranks_break_even_where_a_step_takes_twice_as_long():
    assert predict(case(), 2).break_even.value == pytest.approx(1e6 / 3.0, rel=1e-4)


def test_efficiency_is_90_percent_at_the_bandwidth_that_is_given_for_it():
    bandwidth = predict(case(), 2).link_for_good.value
    assert predict(case(bandwidth), 2).efficiency.value == pytest.approx(0.9, rel=1e-4)


def test_no_bandwidth_helps_against_latency():
    slow = replace(case(), fabric=Fabric(inter=Link(bandwidth=1e6, latency=10.0)))
    assert math.isinf(predict(slow, 2).break_even.value)


def test_the_best_batch_is_the_smallest_that_hides_enough():
    best = predict(case(), 2).best_batch.value
    assert best == 128  # 0.1 s per sample: 9 s of computing for 1 s of exchange need 90 samples
    assert predict(replace(case(), workload=WORK.with_samples(128)), 2).efficiency.value >= 0.9


def test_time_and_cost_follow_from_throughput():
    two = predict(case(total_samples=15 * 3600, price=2.0), 2)
    assert two.finish is not None
    assert two.cost is not None
    assert (two.finish.value, two.cost.value) == (pytest.approx(3600), pytest.approx(4.0))


def test_uncertainty_widens_the_interval_around_the_best_guess():
    sure = predict(case(), 2)
    unsure = predict(case(uncertainty=Uncertainty(pace=0.05, inter=0.1)), 2)
    assert unsure.step.value == pytest.approx(sure.step.value)
    assert unsure.step.low < sure.step.value < unsure.step.high
    assert predict(case(uncertainty=Uncertainty(pace=0.05, inter=0.1)), 2) == unsure, (
        "the same question has the same answer"
    )


def test_compressing_and_accumulating_help_where_the_link_is_slow():
    slow = case(0.1e6)
    plain = predict(slow, 2).throughput.value
    assert predict(replace(slow, workload=WORK.compressed(0.5)), 2).throughput.value > 1.5 * plain
    assert predict(replace(slow, accumulate=4), 2).throughput.value > 2 * plain
    same = replace(slow, accumulate=4, global_batch=240)
    assert predict(same, 2).step == predict(replace(slow, accumulate=4), 2).step


def test_a_step_has_the_computing_of_all_its_parts_and_one_exchange():
    four = predict(case(accumulate=4), 2)
    assert four.samples_per_rank == 120
    assert four.step.value == pytest.approx(4 * 3.0 + 1.0)
    assert four.efficiency.value == pytest.approx(12 / 13)
    assert predict(case(accumulate=4), 1).throughput.value == pytest.approx(10), "30 samples in 3 s, as without"


def test_parts_of_one_global_batch_save_no_exchange():
    """Only the backward pass of the last part hides it, so that there is nothing to gain."""
    early = replace(WORK, ready=(0.5,))
    whole, parts = (predict(case(0.7e6, workload=early, global_batch=60, accumulate=n), 2) for n in (1, 4))
    assert whole.step.value == pytest.approx(1.0 + 1.0 + 1 / 0.7)
    assert parts.step.value == pytest.approx(0.75 * 3.0 + 0.25 * 2.0 + 1 / 0.7)
    assert parts.throughput.value < whole.throughput.value


def test_only_the_part_that_exchanges_pays_for_taking_part():
    slow = case(overhead=Overhead(fraction=0.1), accumulate=4)
    assert predict(slow, 2).step.value == pytest.approx(3 * 3.0 + 3 * (1 + 0.6 * 0.1) + 1.0)
    assert predict(slow, 1).step.value == pytest.approx(4 * 3.0)


def test_the_best_batch_of_several_parts_has_no_part_of_less_than_a_sample():
    best = predict(case(accumulate=8), 2).best_batch.value
    assert best == 128
    assert predict(case(1e12, accumulate=8), 2).best_batch.value == 8
