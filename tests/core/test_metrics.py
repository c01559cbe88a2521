"""Scores: exact sums over samples, from which values are computed."""

import math
import operator
import pickle
from dataclasses import asdict
from fractions import Fraction
from functools import reduce
from itertools import permutations

import pytest

from paceline.core.metrics import ExactSum, Scores, Sums
from paceline.core.score_text import main_score, score_text


def sums(loss, *, samples):
    return Sums(parts={"loss": (ExactSum.of(loss, bits=24), ExactSum.of(samples))}, samples=samples)


def test_sums_add_up_so_that_every_sample_counts_once():
    total = sums(3.0, samples=3) + sums(5.0, samples=1)
    assert [part.number for part in total.parts["loss"]] == [8.0, 4]
    assert (total.samples, total + Sums(), Sums() + total) == (4, total, total)


def test_sums_of_any_size_are_exact_in_any_order():
    losses = [1e9 / 3, 1e16 / 7, 0.1, 3.3, 7.7, 3e15 / 11, 5 * 2**-24]
    totals = {
        sum(order, start=ExactSum.of(0.0, bits=24)) for order in permutations(ExactSum.of(v, bits=24) for v in losses)
    }
    assert len(totals) == 1
    # the control: floats depend on the order (sum() compensates from Python 3.12 on)
    assert len({reduce(operator.add, order) for order in permutations(losses)}) > 1
    assert totals.pop().units == (sum(round(Fraction(loss) * 2**24) for loss in losses),)


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_never_lost_in_a_sum(loss):
    total = sums(loss, samples=1) + sums(2.0, samples=3)
    assert not math.isfinite(total.nonfinite("loss"))
    assert sums(2.0, samples=3).nonfinite("loss") == 0


def test_sums_survive_a_checkpoint_matrices_too():
    matrix = ExactSum(units=(1, 2, 3, 4), shape=(2, 2))
    both = Sums(parts={"mIoU": (matrix,)} | dict(sums(1.5, samples=3).parts), samples=3)
    assert Sums.from_dict(asdict(both)) == both
    assert (both + both).parts["mIoU"][0].units == (2, 4, 6, 8)


@pytest.mark.parametrize("loss", [{"loss_sum": 1.5}, {"loss_units": 3 << 23, "nonfinite": 0.0}])
def test_the_scores_of_earlier_versions_are_read(loss):
    old = loss | {"correct1": 2, "correct5": 3, "samples": 4}
    assert Scores.from_dict(old).as_dict() == {"loss": 0.375, "top1": 0.5, "top5": 0.75, "samples": 4}
    assert [part.number for part in Sums.from_dict(old).parts["accuracy"]] == [2, 3, 4]


def test_a_score_is_an_item_and_an_attribute():
    scores = pickle.loads(pickle.dumps(Scores(by_name={"loss": 1.0, "mIoU": 0.25}, samples=4)))
    assert (scores["mIoU"], scores.mIoU, scores.loss) == (0.25, 0.25, 1.0)
    with pytest.raises(AttributeError, match="there is no score top1"):
        _ = scores.top1


def test_text_shows_whatever_scores_there_are():
    assert score_text({"loss": 0.5, "top1": 0.75, "top5": 1.0}) == "loss 0.5000  acc 75.00%  top-5 100.00%"
    assert score_text({"loss": 0.5, "perplexity": 12.3456, "x": 1}, most=2) == "loss 0.5000  perplexity 12.35"
    assert main_score({"loss": 1.0, "mIoU": 0.5, "samples": 3}) == "mIoU"
    assert main_score({"loss": 1.0, "samples": 3, "epoch": 1}) == "loss"
