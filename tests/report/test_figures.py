"""Figures are placed right: round ticks, labels apart, lines that keep their shape."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.report.figures import LABEL_GAP, Scale, nice_ticks, spread_out, thin_out


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_round_and_cover_the_range(low, span):
    ticks = nice_ticks(low, low + span)
    assert ticks[0] <= low + span * 1e-6
    assert ticks[-1] >= low + span * (1 - 1e-6)
    assert 2 <= len(ticks) <= 8
    steps = {round((b - a) / span, 6) for a, b in itertools.pairwise(ticks)}
    assert max(steps) - min(steps) < 1e-3, "evenly spaced"


@given(st.lists(st.floats(0, 100), min_size=1, max_size=8))
def test_labels_stand_apart_and_keep_their_order(places):
    moved = spread_out(places)
    assert max(moved) <= 100 + 1e-9
    order = sorted(range(len(places)), key=lambda index: places[index])
    gaps = [moved[b] - moved[a] for a, b in itertools.pairwise(order)]
    assert all(gap >= LABEL_GAP - 1e-6 for gap in gaps)


def test_a_long_line_keeps_its_ends_and_its_mean():
    points = [(float(x), float(x % 7)) for x in range(10_000)]
    thin = thin_out(points, most=200)
    assert len(thin) <= 200
    assert thin[-1] == points[-1]
    assert sum(y for _, y in thin[:-1]) / (len(thin) - 1) == pytest.approx(3.0, abs=0.1)
    assert thin_out(points[:50], most=200) == points[:50]


def test_a_logarithmic_scale_spaces_doublings_evenly():
    scale = Scale(1, 64, is_log=True)
    assert [round(scale(value), 3) for value in (1, 8, 64)] == [0, 50, 100]
