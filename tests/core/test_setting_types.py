"""Intervals such as `2 epochs` and `500 steps`: how they are read, and when they are due."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.setting_types import Interval


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
def test_an_invalid_interval_is_refused(text):
    with pytest.raises(ValueError, match=r".*"):
        Interval.parse(text)


@given(st.integers(1, 10**9), st.sampled_from(["epoch", "step"]))
def test_an_interval_reads_back_from_its_text(number, unit):
    interval = Interval(number, unit)
    assert Interval.parse(str(interval)) == interval


def test_an_interval_is_due_at_its_multiples():
    assert [step for step in range(1, 25) if Interval(2).due(step=step, steps_per_epoch=5)] == [10, 20]
    assert [step for step in range(1, 25) if Interval(7, "step").due(step=step, steps_per_epoch=5)] == [7, 14, 21]
