"""One step as a timeline: computing, hidden and exposed communication."""

import pytest

from paceline.report.step_timeline import MOST_BUCKETS, one_step
from tests.report.sample_runs import make_profile


def test_a_step_shows_what_hides_and_what_is_waited_for():
    bars = one_step(make_profile())
    assert bars.mark is not None
    computing, *buckets = bars.rows
    assert [part.style for part in computing.segments][-3:] == ["backward", "communication", "update"]
    assert [[part.style for part in bucket.segments] for bucket in buckets] == [
        ["hidden"], ["hidden"], ["hidden", "communication"], ["communication"]
    ]  # fmt: skip
    late = buckets[-1].segments[-1]
    assert late.start == pytest.approx(bars.mark.place, abs=0.01), "what is late begins where the backward pass ends"
    assert late.start + late.width == pytest.approx(computing.segments[-1].start, abs=0.02), "the update waits for it"
    assert "30 ms is exposed" in bars.note
    assert len(one_step(make_profile(buckets=200)).rows) <= MOST_BUCKETS + 1


def test_neighbours_among_many_buckets_are_drawn_as_one():
    _, first, *_, last = one_step(make_profile(buckets=100)).rows
    assert (first.name, last.name) == ("buckets 1–4", "buckets 97–100")
    assert (first.note, first.total) == ("43.5 kB", "2.55 ms"), "from the first that is ready to the last that is done"


def test_a_lone_rank_has_no_communication():
    bars = one_step(make_profile(ranks=1, buckets=0))
    assert (len(bars.rows), bars.mark) == (1, None)
    assert bars.note == "A lone rank has no communication."
