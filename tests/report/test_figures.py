"""Figures are placed right: round ticks, labels apart, lines that keep their shape, bars that add up."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.report.figures import LABEL_GAP, Scale, nice_ticks, spread_out, thin_out
from paceline.report.lanes import MOST_BUCKETS, one_step
from paceline.report.seconds import MOST_RANKS, own_seconds, steps_of_ranks, steps_of_runs, whole_run
from tests.report.stories import PHASES, make_profile, make_split, make_story


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


def test_the_bars_of_ranks_add_up_and_share_a_scale():
    bars = steps_of_ranks(make_story())
    assert bars is not None
    first, second = bars.rows
    assert (first.name, first.note, first.total) == ("rank 0", "node1", "100 ms")
    assert sum(part.width for part in second.segments) == pytest.approx(100, abs=0.2)
    assert sum(part.width for part in first.segments) == pytest.approx(100 * 100 / 107, abs=0.2)
    styles = [part.style for part in first.segments]
    assert styles == list(PHASES)
    assert "backward 4" in bars.alt
    assert {key.name: key.share for key in bars.keys}["exposed communication"] == "29%"


def test_many_ranks_are_summed_up_and_the_slowest_is_shown():
    story = make_story(split=make_split(ranks=1000, hosts=125))
    bars = steps_of_ranks(story)
    assert bars is not None
    assert len(bars.rows) <= MOST_RANKS
    assert [row.name for row in bars.rows[:3]] == ["fastest", "median", "rank 999"], "the one that was made slow"
    assert "1,000 ranks" in bars.note
    assert story.split is not None
    assert own_seconds(story.split.steady).argmax() == 999


def test_the_whole_run_has_everything_around_the_steps():
    bars = whole_run(make_story())
    assert bars is not None
    (row,) = bars.rows
    assert [part.style for part in row.segments] == ["steps", "start", "evaluate", "save", "record"]
    assert sum(part.width for part in row.segments) == pytest.approx(100, abs=0.3)


def test_runs_are_drawn_on_one_scale():
    slow, fast = make_story("slow", split=make_split(communication=130)), make_story("fast")
    bars = steps_of_runs([slow, fast])
    assert bars is not None
    widths = {row.name: sum(part.width for part in row.segments) for row in bars.rows}
    assert widths["slow"] == pytest.approx(100, abs=0.2)
    assert widths["fast"] == pytest.approx(100 * 103.5 / 203.5, abs=1)


def test_a_step_shows_what_hides_and_what_is_waited_for():
    bars = one_step(make_profile())
    assert bars.mark is not None
    computing, *lanes = bars.rows
    assert [part.style for part in computing.segments][-3:] == ["backward", "communication", "update"]
    assert [[part.style for part in lane.segments] for lane in lanes] == [
        ["hidden"], ["hidden"], ["hidden", "communication"], ["communication"]
    ]  # fmt: skip
    late = lanes[-1].segments[-1]
    assert late.start == pytest.approx(bars.mark.place, abs=0.01), "what is late begins where the backward pass ends"
    assert late.start + late.width == pytest.approx(computing.segments[-1].start, abs=0.02), "the update waits for it"
    assert "the rank waits 30 ms for the rest" in bars.note
    assert len(one_step(make_profile(buckets=200)).rows) <= MOST_BUCKETS + 1
