"""The clock: each moment belongs to one phase, on the host and on a device that runs behind it."""

import time

import pytest
import torch

from paceline.engine.clock import BACKWARD, COPY, DATA, EXCHANGE, FORWARD, LAPS, START, UPDATE, Clock, DeviceClock


class FakeDevice:
    """A device that works off what it is given in order, as slowly as it is told to."""

    def __init__(self):
        self.host = 0.0
        self.free_at = 0.0

    def work(self, seconds):
        self.free_at = max(self.free_at, self.host) + seconds

    def event(self):
        device = self

        class Event:
            def record(self):
                self.at = max(device.free_at, device.host)

            def synchronize(self):
                device.host = max(device.host, self.at)

            def elapsed_time(self, later):
                return 1e3 * (later.at - self.at)

        return Event()


def laps(clock):
    return {name: round(seconds, 6) for name, seconds in zip(LAPS, clock.totals(), strict=True) if seconds > 0}


def test_a_device_that_is_behind_hides_the_wait_for_data():
    device = FakeDevice()
    clock = DeviceClock(device.event)
    for _ in range(3):
        device.host += 0.5
        clock.lap(DATA)
        for seconds, phase in ((1, FORWARD), (2, BACKWARD), (0.25, EXCHANGE), (0.75, UPDATE)):
            device.work(seconds)
            clock.lap(phase)
    assert laps(clock) == {"data": 0.5, "forward": 3, "backward": 6, "exchange": 0.75, "update": 2.25}
    assert clock.take_waits() == pytest.approx([0.25] * 3)
    assert clock.take_waits() == []


def test_a_device_that_waits_for_data_books_it_as_such():
    device = FakeDevice()
    clock = DeviceClock(device.event, age=7)
    for _ in range(3):
        device.host += 5
        clock.lap(DATA)
        device.work(1)
        clock.lap(UPDATE)
    assert laps(clock) == {"data": 5 + 4 + 4, "update": 3, "start": 7}


def test_reading_a_device_clock_twice_changes_nothing():
    device = FakeDevice()
    clock = DeviceClock(device.event)
    device.work(1)
    clock.lap(COPY)
    assert clock.totals() == clock.totals()
    device.work(2)
    clock.lap(FORWARD)
    assert laps(clock) == {"copy": 1, "forward": 2}


def test_laps_add_up_to_the_time_since_the_start():
    clock = Clock(age=3)
    clock.lap(START)
    for phase in (DATA, FORWARD, BACKWARD, EXCHANGE, UPDATE) * 20:
        time.sleep(0.0002)
        clock.lap(phase)
    assert sum(clock.totals()) == pytest.approx(clock.seconds, abs=1e-9)
    assert laps(clock)["start"] >= 3


def test_what_autograd_does_after_the_last_gradient_is_the_exchange():
    """Stands for DDP, which asks to be called back while the backward pass runs and then waits."""
    clock, weight = Clock(), torch.ones(3, requires_grad=True)
    engine = torch.autograd.Variable._execution_engine
    computed = weight * 2
    computed.register_hook(lambda _: engine.queue_callback(lambda: time.sleep(0.05)))
    loss = computed.sum()
    clock.watch(loss)
    clock.lap(FORWARD)
    loss.backward()
    clock.lap(EXCHANGE)
    clock.lap(UPDATE)
    assert clock.totals()[EXCHANGE] >= 0.05
    assert clock.totals()[BACKWARD] > 0
    assert clock.take_waits() == [clock.totals()[EXCHANGE]]


def test_a_lone_rank_waits_for_no_gradients():
    clock, loss = Clock(alone=True), torch.ones(3, requires_grad=True).sum()
    clock.watch(loss)
    clock.lap(FORWARD)
    loss.backward()
    clock.lap(EXCHANGE)
    clock.lap(UPDATE)
    assert clock.totals()[EXCHANGE] == 0
    assert clock.totals()[BACKWARD] > 0
    assert clock.take_waits() == [0.0]
