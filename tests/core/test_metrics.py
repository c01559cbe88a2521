"""Scores: sums over samples, from which averages are computed."""

import math
from fractions import Fraction
from itertools import permutations

import pytest

from paceline.core.metrics import Score


def test_scores_add_up_as_sums_so_that_every_sample_counts_once():
    """Averaging the averages of batches of 3 and 1 would give 0.5: a mistake of the seeds."""
    total = Score.of(3.0, correct1=0, correct5=3, samples=3) + Score.of(5.0, correct1=1, correct5=1, samples=1)
    assert total.as_dict() == {"loss": 2.0, "top1": 0.25, "top5": 1.0, "samples": 4}


def test_a_score_of_no_samples_is_zero_rather_than_an_error():
    assert Score().as_dict() == {"loss": 0.0, "top1": 0.0, "top5": 0.0, "samples": 0}


def test_losses_of_any_size_add_up_exactly_in_any_order():
    losses = [1e9 / 3, 1e16 / 7, 0.1, 3.3, 7.7, 3e15 / 11, 5 * 2**-24]
    scores = [Score.of(loss, samples=1) for loss in losses]
    sums = {sum(order, start=Score()) for order in permutations(scores)}
    assert len(sums) == 1
    assert len({sum(order) for order in permutations(losses)}) > 1  # the control: floats depend on the order
    total = sums.pop()
    assert total.loss_units == sum(round(Fraction(loss) * 2**24) for loss in losses)
    assert (total + Score.of(3.4e38, samples=1)).loss == pytest.approx(3.4e38 / 8)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_never_lost_in_a_sum(loss):
    total = Score.of(loss, samples=1) + Score.of(2.0, samples=3)
    assert not math.isfinite(total.loss_sum)
    assert not math.isfinite(total.loss)


def test_the_float_sums_of_earlier_versions_are_read():
    old = {"loss_sum": 1.5, "correct1": 2, "correct5": 3, "samples": 4}
    assert Score.from_dict(old) == Score.of(1.5, correct1=2, correct5=3, samples=4)
    assert Score.from_dict(old).loss_sum == 1.5
