"""The clock that is attached to foreign scripts: what a stretch of time was for is decided by what follows it."""

import sys
from pathlib import Path

import pytest

import paceline

sys.path.append(str(Path(paceline.__file__).parent / "observe" / "attached"))
from paceline_attach import phase_clock as attached


@pytest.fixture
def clock(monkeypatch):
    """Return a clock whose time goes on by one second at each reading."""
    now = iter(range(1000))
    monkeypatch.setattr(attached.time, "perf_counter", lambda: float(next(now)))
    return attached.PhaseClock(0.0)


def seconds(clock) -> dict[str, float]:
    return {phase: value for phase, value in clock.totals.items() if value}


def step(clock, *, loader=1):
    clock.end_span("rest")
    clock.end_span("data", loader)
    clock.end_span("rest")
    clock.decide_for_training()
    clock.end_phase("forward")
    clock.end_phase("backward")
    clock.end_phase("grad_sync")
    clock.end_phase("update")


def test_time_before_the_first_batch_is_start_up(clock):
    step(clock)
    parts = {"start": 1, "data": 1, "rest": 1, "forward": 1, "backward": 1, "grad_sync": 1, "update": 1}
    assert seconds(clock) == parts


def test_batches_that_no_training_followed_were_for_an_evaluation(clock):
    step(clock)
    before = seconds(clock)
    for _ in range(3):
        clock.end_span("data", 2)
        clock.end_span("rest")
    step(clock)
    gained = {phase: value - before.get(phase, 0) for phase, value in seconds(clock).items()}
    assert gained["evaluate"] == 7, "three batches, the time after each, and the time before the next training batch"
    assert gained["data"] == 1


def test_a_forward_pass_without_gradients_is_an_evaluation_but_a_checkpoint_is_none(clock):
    step(clock)
    clock.end_span("save")
    clock.end_span("data", 2)
    clock.decide_for_evaluation()
    assert (clock.totals["save"], clock.totals["evaluate"]) == (1, 1)


def test_every_second_is_counted_once(clock):
    step(clock)
    clock.end_span("talk")
    clock.end_span("data", 2)
    clock.end_span("data", 2)
    clock.finish()
    assert sum(clock.totals.values()) == clock.now - clock.start
    assert clock.totals["evaluate"] == 3
