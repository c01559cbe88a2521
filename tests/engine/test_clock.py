"""The clock: each moment belongs to one phase, on the host and on a device that runs behind it."""

import time

import pytest
import torch

from paceline.engine.clock import BACKWARD, COPY, DATA, FORWARD, GRAD_SYNC, START, UPDATE, Clock, DeviceClock
from paceline.records.phases import CLOCK_PHASES


class FakeDevice:
    """A device that works off what it is given in order, as slowly as it is told to."""

    def __init__(self):
        self.host = 0.0
        self.free_at = 0.0
        self.is_stuck = False

    def work(self, seconds):
        self.free_at = max(self.free_at, self.host) + seconds

    def event(self):
        device = self

        class Event:
            def record(self):
                self.at = max(device.free_at, device.host)

            def query(self):
                if device.is_stuck:
                    return False
                device.host = max(device.host, self.at)
                return True

            def elapsed_time(self, later):
                return 1e3 * (later.at - self.at)

        return Event()


def phases_of(clock):
    return {name: round(seconds, 6) for name, seconds in zip(CLOCK_PHASES, clock.totals(), strict=True) if seconds > 0}


def test_a_device_that_is_behind_hides_the_wait_for_data():
    device = FakeDevice()
    clock = DeviceClock(device.event)
    for _ in range(3):
        device.host += 0.5
        clock.end_phase(DATA)
        for seconds, phase in ((1, FORWARD), (2, BACKWARD), (0.25, GRAD_SYNC), (0.75, UPDATE)):
            device.work(seconds)
            clock.end_phase(phase)
    assert phases_of(clock) == {"data": 0.5, "forward": 3, "backward": 6, "grad_sync": 0.75, "update": 2.25}
    assert clock.take_waits() == pytest.approx([0.25] * 3)
    assert clock.take_waits() == []


def test_a_device_that_waits_for_data_books_it_as_such():
    device = FakeDevice()
    clock = DeviceClock(device.event, age=7)
    for _ in range(3):
        device.host += 5
        clock.end_phase(DATA)
        device.work(1)
        clock.end_phase(UPDATE)
    assert phases_of(clock) == {"data": 5 + 4 + 4, "update": 3, "start": 7}


def test_reading_a_device_clock_twice_changes_nothing():
    device = FakeDevice()
    clock = DeviceClock(device.event)
    device.work(1)
    clock.end_phase(COPY)
    assert clock.totals() == clock.totals()
    device.work(2)
    clock.end_phase(FORWARD)
    assert phases_of(clock) == {"copy": 1, "forward": 2}


def test_laps_add_up_to_the_time_since_the_start():
    clock = Clock(age=3)
    clock.end_phase(START)
    for phase in (DATA, FORWARD, BACKWARD, GRAD_SYNC, UPDATE) * 20:
        time.sleep(0.0002)
        clock.end_phase(phase)
    assert sum(clock.totals()) == pytest.approx(clock.seconds, abs=1e-9)
    assert phases_of(clock)["start"] >= 3


def test_what_autograd_does_after_the_last_gradient_is_gradient_sync():
    """Stands for DDP, which asks to be called back while the backward pass runs and then waits."""
    clock, weight = Clock(), torch.ones(3, requires_grad=True)
    engine = torch.autograd.Variable._execution_engine
    computed = weight * 2
    computed.register_hook(lambda _: engine.queue_callback(lambda: time.sleep(0.05)))
    loss = computed.sum()
    clock.watch(loss)
    clock.end_phase(FORWARD)
    loss.backward()
    clock.end_phase(GRAD_SYNC)
    clock.end_phase(UPDATE)
    assert clock.totals()[GRAD_SYNC] >= 0.05
    assert clock.totals()[BACKWARD] > 0
    assert clock.take_waits() == [clock.totals()[GRAD_SYNC]]


def test_a_lone_rank_waits_for_no_gradients():
    clock, loss = Clock(alone=True), torch.ones(3, requires_grad=True).sum()
    clock.watch(loss)
    clock.end_phase(FORWARD)
    loss.backward()
    clock.end_phase(GRAD_SYNC)
    clock.end_phase(UPDATE)
    assert clock.totals()[GRAD_SYNC] == 0
    assert clock.totals()[BACKWARD] > 0
    assert clock.take_waits() == [0.0]


def test_a_device_that_never_finishes_is_given_up():
    device = FakeDevice()
    clock = DeviceClock(device.event, timeout=0.01)
    clock.end_phase(FORWARD)
    device.is_stuck = True
    with pytest.raises(RuntimeError, match=r"timed out after 0\.01 s"):
        clock.totals()
