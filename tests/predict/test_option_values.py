"""Values of options, and what is refused."""

import math

import pytest

from paceline.core.errors import ConfigError
from paceline.predict.option_values import (
    check_batch,
    check_cluster,
    check_question,
    read_amount,
    read_data_rate,
    read_measured,
    read_seconds,
)
from paceline.predict.predict_options import BatchOptions, ClusterOptions, QuestionOptions

EIGHT = ClusterOptions(ranks=(2, 8))


def test_measured_points_are_ranks_and_rates():
    assert read_measured(("16:4.7k", "8:2456")) == ((8, 2456.0), (16, 4700.0))
    assert read_measured(()) == ()


@pytest.mark.parametrize("points", [("8",), ("8:",), ("8:-3",), ("0:5",), ("eight:5",), ("8:0",), ("8:5", "8:6")])
def test_a_point_without_ranks_or_a_rate_is_refused(points):
    with pytest.raises(ConfigError, match="--measured has"):
        read_measured(points)


def test_synthetic_data_has_no_limit():
    assert read_data_rate("synthetic") == math.inf
    assert read_data_rate("5k") == 5000
    with pytest.raises(ConfigError, match="--data-rate is"):
        read_data_rate("0")


def test_times_and_amounts_are_positive():
    with pytest.raises(ConfigError, match="more than 0 seconds"):
        read_seconds("latency", "0us")
    with pytest.raises(ConfigError, match="at least 1") as refused:
        read_amount("bucket", "0", example="25MiB")
    assert refused.value.hint == "use --bucket 25MiB"


@pytest.mark.parametrize(
    ("batch", "what"),
    [
        (BatchOptions(global_batch=4), "one sample for each of 8 ranks"),
        (BatchOptions(global_batch=16, accumulate=4), "8 ranks with 4 micro-batches each"),
        (BatchOptions(per_rank_batch=0.5), "--per-rank-batch is 0.5"),
        (BatchOptions(per_rank_batch=math.nan), "--per-rank-batch is nan"),
        (BatchOptions(global_batch=64, per_rank_batch=8), "cannot be combined"),
    ],
)
def test_half_a_sample_per_rank_is_refused(batch, what):
    with pytest.raises(ConfigError, match=what):
        check_batch(batch, EIGHT, is_spec=False)
    check_batch(BatchOptions(global_batch=8), EIGHT, is_spec=False)


@pytest.mark.parametrize(
    ("question", "cluster", "total", "what"),
    [
        (QuestionOptions(), ClusterOptions(price=2.0), None, "--price needs the length"),
        (QuestionOptions(deadline="2h"), EIGHT, None, "--deadline needs the length"),
        (QuestionOptions(budget=9.0), EIGHT, 1e6, "--budget needs the price"),
        (QuestionOptions(budget=-9.0), EIGHT, 1e6, "--budget is -9"),
        (QuestionOptions(worth=0), EIGHT, 1e6, "--worth is 0"),
    ],
)
def test_questions_without_an_answer_are_refused(question, cluster, total, what):
    with pytest.raises(ConfigError, match=what):
        check_question(question, cluster, total)
    check_question(QuestionOptions(budget=9.0, deadline="1h", worth=1), ClusterOptions(price=1.0), 1e6)


def test_a_link_is_given_once(tmp_path):
    with pytest.raises(ConfigError, match="--link cannot be combined with --sweep"):
        check_cluster(ClusterOptions(link="1gbit", sweep=tmp_path))
