"""Intervals, units, names and scores: the small words of every message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core import units
from paceline.core.interval import Interval
from paceline.core.metrics import Score
from paceline.core.names import nearest, suggestion


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", Interval(1)),
        ("2 epochs", Interval(2)),
        ("1 epoch", Interval(1)),
        ("500 steps", Interval(500, "step")),
        ("1step", Interval(1, "step")),
        ("  3 epochs ", Interval(3)),
    ],
)
def test_an_interval_is_read_as_people_write_it(text, expected):
    assert Interval.parse(text) == expected


@pytest.mark.parametrize("text", ["", "0", "0 steps", "-1", "1.5", "2 days", "steps", "epochs 2"])
def test_what_is_no_interval_is_refused(text):
    with pytest.raises(ValueError, match=r".*"):
        Interval.parse(text)


@given(st.integers(1, 10**9), st.sampled_from(["epoch", "step"]))
def test_an_interval_reads_back_from_its_text(number, unit):
    interval = Interval(number, unit)
    assert Interval.parse(str(interval)) == interval


def test_an_interval_is_due_at_its_multiples():
    assert [step for step in range(1, 25) if Interval(2).due(step=step, steps_per_epoch=5)] == [10, 20]
    assert [step for step in range(1, 25) if Interval(7, "step").due(step=step, steps_per_epoch=5)] == [7, 14, 21]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.count(12345), "12,345"),
        (units.plural(1, "epoch"), "1 epoch"),
        (units.plural(0, "epoch"), "0 epochs"),
        (units.plural(1200, "step"), "1,200 steps"),
        (units.percent(0.9417), "94.17%"),
        (units.number(0.1), "0.1"),
        (units.number(3e-05), "3e-05"),
        (units.number(0.1 * 3), "0.3"),
        (units.rate(12345.6), "12,346"),
        (units.rate(99.96), "100"),
        (units.rate(3.14159), "3.14"),
        (units.duration(0.416), "0.42s"),
        (units.duration(12.34), "12.3s"),
        (units.duration(245), "4m 05s"),
        (units.duration(11220), "3h 07m"),
        (units.size(0), "0 B"),
        (units.size(1536), "1.54 kB"),
        (units.size(2e6), "2 MB"),
        (units.size(3.2e12), "3.2 TB"),
    ],
)
def test_numbers_read_as_people_write_them(text, expected):
    assert text == expected


@pytest.mark.parametrize(
    ("seconds", "text"), [(9.999, "10.0s"), (59.99, "1m 00s"), (59.94, "59.9s"), (3599.9, "1h 00m")]
)
def test_a_duration_at_the_edge_of_a_unit_is_rounded_into_the_next(seconds, text):
    assert units.duration(seconds) == text


@pytest.mark.parametrize(("num_bytes", "text"), [(999, "999 B"), (999.9, "1 kB"), (999_999, "1 MB")])
def test_a_size_at_the_edge_of_a_unit_is_rounded_into_the_next(num_bytes, text):
    assert units.size(num_bytes) == text


def test_the_nearest_name_ignores_case_and_gives_up_when_nothing_is_close():
    assert nearest("ResNet2O", ["resnet20", "mlp"]) == "resnet20"
    assert nearest("xyz", ["resnet20", "mlp"]) is None


@pytest.mark.parametrize("name", ["resnet2", "resnet2O", "resnet21"])
def test_among_equals_the_nearest_name_begins_like_what_was_typed(name):
    assert nearest(name, ["resnet32", "resnet20", "resnet110", "resnet52"]) == "resnet20"


def test_a_suggestion_names_the_nearest_then_all():
    assert suggestion("resnet2O", ["resnet20", "mlp"]) == "did you mean resnet20? (known: mlp, resnet20)"
    assert suggestion("xyz", ["resnet20", "mlp"]) == "known: mlp, resnet20"


def test_scores_add_up_as_sums_so_that_every_image_counts_once():
    """Averaging the averages of batches of 3 and 1 would give 0.5: a mistake of the seeds."""
    total = Score(loss_sum=3.0, correct1=0, correct5=3, images=3) + Score(
        loss_sum=5.0, correct1=1, correct5=1, images=1
    )
    assert total.as_dict() == {"loss": 2.0, "top1": 0.25, "top5": 1.0, "images": 4}


def test_a_score_of_no_images_is_zero_rather_than_an_error():
    assert Score().as_dict() == {"loss": 0.0, "top1": 0.0, "top5": 0.0, "images": 0}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (units.parse_number("25.6M"), 25.6e6),
        (units.parse_number("25MiB"), 25 * 2**20),
        (units.parse_number("1,281,167"), 1_281_167),
        (units.parse_seconds("50us"), 50e-6),
        (units.parse_seconds("1.2 ms"), 1.2e-3),
        (units.parse_seconds("0.345"), 0.345),
        (units.parse_rate("10gbit"), 1.25e9),
        (units.parse_rate("25Gb/s"), 3.125e9),
        (units.parse_rate("100 mbit"), 12.5e6),
        (units.parse_rate("12GB/s"), 12e9),
    ],
)
def test_amounts_are_read_as_people_write_them(value, expected):
    assert value == pytest.approx(expected)


@pytest.mark.parametrize("read", [units.parse_number, units.parse_seconds, units.parse_rate])
@pytest.mark.parametrize("text", ["", "much", "-1", "5 parsec", "1.2.3"])
def test_what_is_no_amount_is_refused_with_an_example(read, text):
    with pytest.raises(ValueError, match=r"expected a .* such as"):
        read(text)


def test_a_bit_rate_reads_as_links_are_sold():
    assert units.bit_rate(1.25e9) == "10 Gbit/s"
    assert units.bit_rate(11.95e6) == "95.6 Mbit/s"
    assert units.bit_rate(10) == "80 bit/s"
