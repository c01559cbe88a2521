"""`paceline.start_run` in a script of one process."""

import sys

import pytest

import paceline
from paceline.core.errors import FinishedError, RunError, TaskError
from tests.ranks import own_loops


@pytest.fixture
def config(tmp_path, monkeypatch, one_thread):
    script = tmp_path / "script.py"
    script.write_text("")
    monkeypatch.setattr(sys, "argv", [str(script)])
    return paceline.Config(
        global_batch=10, epochs=2, name="mine", threads=1, track=(), device="cpu", runs_dir=tmp_path / "runs"
    )


def test_a_script_starts_a_run_and_its_result_is_there_afterwards(config):
    with paceline.start_run(config) as run:
        own_loops.right(run)
    assert run.result is not None
    assert (run.result.state, run.result.step) == ("FINISHED", 8)
    with pytest.raises(FinishedError, match="has finished: 2 epochs"), paceline.start_run(config, resume="mine") as run:
        own_loops.right(run)


def test_a_loop_that_ends_early_resumes_where_it_left(config):
    with paceline.start_run(config) as run:
        for batch in own_loops.steps(run):
            if batch.step == 4:
                break
    assert run.result is not None
    assert run.result.step == 5


def test_auto_starts_a_run_and_then_leaves_it_alone(config, capsys):
    seen = []
    for _ in range(2):
        with paceline.start_run(config, resume="auto") as run:
            seen += [batch.step for batch in own_loops.steps(run)]
    assert seen == list(range(8))
    assert "has finished" in capsys.readouterr().err


def test_an_error_in_a_script_shows_its_hint(config):
    with pytest.raises(TaskError) as problem, paceline.start_run(config) as run:
        own_loops.no_total(run)
    assert problem.value.__notes__[0] == "hint: pass batch.size or batch.total(...)"


def test_a_run_of_paceline_is_not_resumed_by_a_loop(config, small_config):
    paceline.train(small_config(name="ours"))
    with pytest.raises(RunError), paceline.start_run(config, resume="ours") as run:
        own_loops.right(run)
