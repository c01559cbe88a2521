"""Where the time goes: bars that add up and share a scale."""

import pytest

from paceline.report.time_bars import (
    MOST_RANKS,
    ms_ticks,
    own_seconds,
    split_table,
    steps_of_ranks,
    steps_of_runs,
    whole_run,
)
from tests.report.sample_runs import STEP_MS, make_run, make_split


def test_the_bars_of_ranks_add_up_and_share_a_scale():
    bars = steps_of_ranks(make_run())
    assert bars is not None
    first, second = bars.rows
    assert (first.name, first.note, first.total) == ("rank 0", "node1", "100 ms")
    assert sum(part.width for part in second.segments) == pytest.approx(100, abs=0.2)
    assert sum(part.width for part in first.segments) == pytest.approx(100 * 100 / 107, abs=0.2)
    styles = [part.style for part in first.segments]
    assert styles == list(STEP_MS)
    assert "backward 4" in bars.alt
    assert {key.name: key.share for key in bars.keys}["exposed communication"] == "29%"


def test_many_ranks_are_summed_up_and_the_slowest_is_shown():
    run = make_run(split=make_split(ranks=1000, hosts=125))
    bars = steps_of_ranks(run)
    assert bars is not None
    assert len(bars.rows) <= MOST_RANKS
    assert [row.name for row in bars.rows[:3]] == ["fastest", "median", "rank 999"], "the one that was made slow"
    assert "1,000 ranks" in bars.note
    assert run.split is not None
    assert own_seconds(run.split.steady_state).argmax() == 999


def test_the_whole_run_has_everything_around_the_steps():
    bars = whole_run(make_run())
    assert bars is not None
    (row,) = bars.rows
    assert [part.style for part in row.segments] == ["steps", "start", "evaluate", "save", "record"]
    assert sum(part.width for part in row.segments) == pytest.approx(100, abs=0.3)


def test_runs_are_drawn_on_one_scale():
    slow, fast = make_run("slow", split=make_split(communication=130)), make_run("fast")
    bars = steps_of_runs([slow, fast])
    assert bars is not None
    widths = {row.name: sum(part.width for part in row.segments) for row in bars.rows}
    assert widths["slow"] == pytest.approx(100, abs=0.2)
    assert widths["fast"] == pytest.approx(100 * 103.5 / 203.5, abs=1)


def test_an_axis_ends_within_the_longest_bar():
    assert ms_ticks(0.107) == [(0, "0"), (23.36, "25"), (46.73, "50"), (70.09, "75"), (93.46, "100 ms")]


def test_every_rank_has_a_row_in_the_table():
    found = split_table(make_run(split=make_split(ranks=3, hosts=3)))
    assert found is not None
    assert [row[:2] for row in found.rows] == [["0", "node1"], ["1", "node2"], ["2", "node3"]]
    last = dict(zip(found.head, found.rows[2], strict=True))
    assert (last["backward_ms"], last["straggler_ms"], last["save_s"]) == ("54", "0", "0.5")
    assert float(last["step_ms"]) == pytest.approx(107)
