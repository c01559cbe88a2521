"""From the clocks of all ranks to phases: what the last rank waits is communication, the rest is waiting for it."""

import numpy as np
import pytest

from paceline.engine.clock import DATA, GRAD_SYNC, Clock
from paceline.engine.timings import ClockTimes, Timings
from paceline.records.phases import CLOCK_PHASES


def counted(waits, **phases):
    totals = [0.0] * len(CLOCK_PHASES)
    totals[GRAD_SYNC] = sum(waits)
    for name, seconds in phases.items():
        totals[CLOCK_PHASES.index(name)] = seconds
    return ClockTimes(seconds=sum(totals) + 0.5, totals=totals, waits=np.array(waits), cpu=1.0, cpu_wait=2.0)


def test_the_rank_that_waits_least_was_the_last_to_arrive():
    timings = Timings(Clock(), 3)
    timings.add([counted([1, 5, 1.5], data=2), counted([4, 2, 1]), counted([3, 3, 3])])
    record = timings.record(30)
    assert record.phases["communication"] == pytest.approx([4.0, 4.0, 4.0])
    assert record.phases["straggler"] == pytest.approx([3.5, 3.0, 5.0])
    assert record.last == [1, 2, 0]
    assert (record.step, record.steps) == (30, 3)
    assert record.phases["data"] == [2.0, 0.0, 0.0]
    assert record.cpu == [1.0] * 3
    assert record.cpu_wait == [2.0] * 3


def test_an_interval_is_the_sum_of_what_was_added_since_the_one_before():
    timings = Timings(Clock(), 2)
    for _ in range(2):
        timings.add([counted([1]), counted([2])])
    assert timings.record(2).seconds == pytest.approx([3.0, 5.0])
    timings.add([counted([]), counted([], save=4)])
    after = timings.record(2)
    assert (after.steps, after.phases["save"], after.phases["straggler"]) == (0, [0.0, 4.0], [0.0, 0.0])


def test_a_lone_rank_has_no_straggler_wait():
    timings = Timings(Clock(), 1)
    timings.add([counted([1, 2])])
    record = timings.record(2)
    assert (record.phases["communication"], record.phases["straggler"], record.last) == ([3.0], [0.0], [0])


def test_each_take_counts_from_the_one_before():
    clock = Clock()
    timings = Timings(clock, 1)
    clock.end_phase(DATA)
    first = timings.take()
    assert first.seconds == pytest.approx(clock.seconds)
    assert 0 <= first.cpu < 1
    again = timings.take()
    assert again.seconds == 0
    assert not any(again.totals)
