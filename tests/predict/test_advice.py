"""The answer to the question that was asked, and the assumptions that decide."""

from dataclasses import replace

import pytest

from paceline.core.errors import ConfigError
from paceline.predict.advice import answer, asked_ranks, more_ranks
from paceline.predict.assumptions import assumptions, range_warnings
from paceline.predict.cases import spec_case
from paceline.predict.predict_options import BatchOptions, ClusterOptions, ModelSpec, QuestionOptions
from paceline.predict.prediction import predict

CLUSTER = ClusterOptions(ranks=(8,), per_node=8, link="100gbit rdma", intra="nvlink", price=2.0)
ASKED = QuestionOptions()


def case(**changes):
    spec = ModelSpec(model="resnet50", samples_per_second=360)
    batch = BatchOptions(per_rank_batch=64, samples="115M")
    return replace(spec_case(CLUSTER, spec, batch, lambda _: [])[0], **changes)


def said(question, ranks=(8, 64), **changes):
    one = case(**changes)
    cluster = replace(CLUSTER, ranks=ranks)
    return answer(question, one, [predict(one, number) for number in asked_ranks(question, cluster, one)])


def test_more_nodes_are_whole_nodes():
    assert more_ranks(4, CLUSTER) == 40
    assert more_ranks(1, replace(CLUSTER, ranks=(3,))) == 16


def test_the_first_sentence_compares_the_fewest_with_the_most():
    text = said(ASKED)
    assert text.startswith("8 nodes (64 ranks) finish in 1.")
    assert "instead of 12.0 h with 8 ranks" in text
    assert "× the device-hours. Beyond " in text
    assert "each further node saves less than 2% of the time." in text


def test_without_a_length_speeds_are_compared():
    text = said(ASKED, total_samples=None, price=None)
    assert text.startswith("8 nodes (64 ranks) train 7.")
    assert "with 8× the devices." in text


def test_a_deadline_takes_the_fewest_nodes_and_a_budget_the_fastest():
    one = case()
    soon = QuestionOptions(deadline="3h")
    (ranks,) = set(asked_ranks(soon, CLUSTER, one)) - {8}
    finish, before = (predict(one, number).finish for number in (ranks, ranks - 8))
    assert finish is not None
    assert before is not None
    assert finish.value <= 3 * 3600 < before.value
    assert f"({ranks} ranks): the fewest for a deadline of 3h, done in" in said(soon, ranks=(8,))

    cheap = QuestionOptions(budget=205.0)
    ranks = max(asked_ranks(cheap, CLUSTER, one))
    cost, more = (predict(one, number).cost for number in (ranks, ranks + 8))
    assert cost is not None
    assert more is not None
    assert cost.value <= 205 < more.value
    assert "the fastest for a budget of 205" in said(cheap, ranks=(8,))


def test_a_deadline_and_a_budget_that_nothing_meets_are_refused():
    with pytest.raises(ConfigError, match="no number of nodes up to 512 finishes within 1s"):
        said(QuestionOptions(deadline="1s"))
    with pytest.raises(ConfigError, match="no number of nodes costs less than 1"):
        said(QuestionOptions(budget=1.0))


def test_the_assumptions_that_decide_come_first_with_their_flags():
    found = assumptions(case(), 64)
    widths = [one.high - one.low for one in found]
    assert widths == sorted(widths, reverse=True)
    assert "--measured" in found[0].flag
    assert any("--overlap" in one.flag for one in found)
    known = assumptions(case(measured=((8, 2500.0),)), 8)
    assert len(known) < len(found), "what was measured is no longer assumed"


def test_ranks_far_from_published_results_and_synthetic_data_are_said():
    one = case()
    assert range_warnings(one, [8, 512]) == []
    assert "1,024 ranks are an extrapolation" in range_warnings(one, [8, 1024])[0]
    free = replace(one, overhead=replace(one.overhead, data_rate=float("inf")))
    assert "Synthetic data assumed" in range_warnings(free, [8])[0]
