"""Following a Slurm job: its states and its output."""

import pytest

from paceline.core.errors import PacelineError
from paceline.launching.slurm_queue import JobState, Tail, changes


def test_following_tells_changes_until_the_job_is_over():
    seen = iter(
        [
            JobState(("PENDING",), "Priority"),
            JobState(("PENDING",), "Priority"),
            None,
            JobState(("RUNNING",)),
            JobState(("PENDING",), "BeginTime"),
            JobState(("RUNNING",)),
            JobState(("COMPLETED",)),
        ]
    )
    told = [str(state) for state in changes("1", look=lambda _job: next(seen), pause=0) if state is not None]
    assert told == ["PENDING (Priority)", "RUNNING", "PENDING (BeginTime)", "RUNNING", "COMPLETED"]


def test_following_gives_up_on_a_slurm_that_never_answers():
    with pytest.raises(PacelineError, match="has not answered 31 times"):
        list(changes("1", look=lambda _job: None, pause=0))


def test_the_states_of_an_array_are_counted_and_all_must_be_good():
    assert str(JobState(("RUNNING", "RUNNING", "PENDING"), "Resources")) == "2 RUNNING, 1 PENDING (Resources)"
    assert not JobState(("COMPLETED", "RUNNING")).is_final
    assert JobState(("COMPLETED", "FAILED")).is_final
    assert not JobState(("COMPLETED", "FAILED")).is_good


def test_output_is_passed_on_in_whole_lines_as_it_grows(tmp_path):
    tail = Tail(tmp_path / "out")
    assert tail.read() == ""
    tail.path.write_bytes(b"one\ntw")
    assert tail.read() == "one\n"
    assert tail.read() == ""
    tail.path.write_bytes(b"one\ntwo\n\xc3\xa9\n")
    assert tail.read() == "two\né\n"
