"""How ranks ended, written by one process and read by another."""

from pathlib import Path

import pytest

from paceline.core.errors import ConfigError, LostRankError
from paceline.core.metrics import Scores
from paceline.launching.outcomes import (
    REPORTS_VARIABLE,
    read_reports,
    read_result,
    report_failure,
    report_stop,
    write_result,
)
from paceline.records.entries import RunResult, State
from tests.parallel.launcher_variables import TORCHRUN


@pytest.fixture
def environ(tmp_path):
    return TORCHRUN | {REPORTS_VARIABLE: str(tmp_path)}


def test_a_known_problem_has_its_message_hint_and_exit_code(tmp_path, environ):
    assert report_failure(ConfigError("too large", hint="use less"), environ)
    (report,) = read_reports(tmp_path)
    assert (report.message, report.hint, report.exit_code, report.trace) == ("too large", "use less", 2, None)
    assert report.rank == int(environ["RANK"])


def test_an_unknown_problem_has_a_trace_and_the_step_it_happened_in(tmp_path, environ):
    with pytest.raises(ValueError, match="planted") as caught:
        raise ValueError("planted")
    caught.value.add_note("rank 1, step 7")
    report_failure(caught.value, environ)
    (report,) = read_reports(tmp_path)
    assert (report.message, report.where, report.exit_code) == ("ValueError: planted", "rank 1, step 7", 1)
    assert "test_outcomes.py" in (report.trace or "")


def test_consequences_of_another_failure_come_last(tmp_path, environ):
    report_failure(LostRankError("rank 1 is gone"), environ)
    next(tmp_path.glob("*.json")).rename(tmp_path / "of-another-rank.json")
    report_failure(ConfigError("too large"), environ)
    assert [(report.message, report.follows) for report in read_reports(tmp_path)] == [
        ("too large", False),
        ("rank 1 is gone", True),
    ]


def test_a_stop_is_no_failure(tmp_path, environ):
    report_stop(15, environ)
    (report,) = read_reports(tmp_path)
    assert (report.exit_code, report.message) == (143, "")


def test_without_a_launcher_nothing_is_written(tmp_path):
    assert not report_stop(15, TORCHRUN)
    assert not report_stop(15, TORCHRUN | {REPORTS_VARIABLE: str(tmp_path / "gone")})


@pytest.mark.parametrize("score", [None, Scores(by_name={"loss": 0.4, "f1": 0.5}, samples=4)])
def test_a_result_is_read_back_as_it_was_written(tmp_path, score):
    result = RunResult(
        folder=Path("runs/x/001"),
        state=State.STOPPED,
        step=7,
        epochs=0.5,
        best=score,
        test=None,
        seconds=1.25,
        signal=15,
    )
    write_result(tmp_path / "result.json", result)
    assert read_result(tmp_path / "result.json") == result
