"""The simulator against cases that can be worked out by hand, and against a clock that ticks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.predict.fabric import Fabric, Link
from paceline.predict.simulate import Workload, expected_maximum, simulate_step, trivial_step

MB = 1e6


def work(**changes):
    usual = {"forward": 1.0, "backward": 2.0, "update": 0.5, "ready": (0.5, 1.0), "sizes": (MB, MB)}
    return Workload(**(usual | changes))


def over(bandwidth, **changes):
    return Fabric(inter=Link(bandwidth=bandwidth, **changes))


def test_one_rank_waits_for_nobody():
    step = simulate_step(work(), over(1.0), 1)
    assert (step.seconds, step.exposed) == (3.5, 0.0)


def test_what_travels_behind_the_backward_pass_is_hidden():
    step = simulate_step(work(), over(4 * MB), 2)  # a bucket takes 0.25 s; the first is hidden, the last is not
    assert step.exposed == pytest.approx(0.25)
    assert step.seconds == pytest.approx(3.75)
    assert step.buckets[0] == pytest.approx((2.0, 2.0, 2.25))


def test_buckets_queue_for_a_slow_link():
    step = simulate_step(work(), over(0.5 * MB), 2)  # 2 s each, the first begins at 1 s of the backward pass
    assert step.exposed == pytest.approx(3.0)


def test_accumulating_exchanges_once():
    once = simulate_step(work(), over(0.5 * MB), 2)
    four = simulate_step(work(), over(0.5 * MB), 2, accumulate=4)
    assert four.seconds == pytest.approx(once.seconds + 3 * 3.0)
    assert four.exposed == pytest.approx(once.exposed)


def test_the_rule_for_accumulating_of_the_research_notes():
    """Three steps of 155 ms without exchange and one of 563 ms are 257 ms each on average."""
    light = Workload(forward=0.05, backward=0.105, update=0.0, ready=(0.0,), sizes=(0.513 * MB,))
    step = simulate_step(light, over(MB), 2, accumulate=4)
    assert simulate_step(light, over(MB), 2).seconds == pytest.approx(0.563)
    assert step.seconds / 4 == pytest.approx(0.257)


def test_computing_is_slower_while_gradients_travel():
    step = simulate_step(work(slowdown=0.5, ready=(0.25, 1.0)), over(4 * MB), 2)
    # from 0.5 s the wire is busy for 0.25 s, in which 0.125 s are computed: the backward pass ends at 2.125 s
    assert step.buckets[-1][0] == pytest.approx(1.0 + 2.125), "after 1 s of the forward pass"


@pytest.mark.parametrize(("ranks", "expected"), [(1, 0.0), (2, 0.5642), (4, 1.0294), (8, 1.4236), (1000, 3.2414)])
def test_the_slowest_of_many_is_as_slow_as_statistics_say(ranks, expected):
    assert expected_maximum(ranks) == pytest.approx(expected, abs=0.02)


def test_stragglers_grow_with_the_ranks():
    steps = [simulate_step(work(spread=0.05), over(1e12), ranks).seconds for ranks in (1, 2, 8, 64, 1024)]
    assert steps == sorted(steps)
    assert steps[0] == 3.5


def test_two_lanes_hide_the_latency_of_one():
    slow = over(MB, latency=0.1)
    one = simulate_step(work(ready=(0.0, 0.0)), slow, 2)
    two = simulate_step(work(ready=(0.0, 0.0), in_flight=2), slow, 2)
    assert one.seconds - two.seconds == pytest.approx(0.2)


def test_many_worlds_are_simulated_at_once():
    speeds = np.array([0.5, 1.0, 4.0]) * MB
    together = simulate_step(work(slowdown=0.2, in_flight=2), over(speeds, latency=0.01), 4).seconds
    apart = [float(simulate_step(work(slowdown=0.2, in_flight=2), over(s, latency=0.01), 4).seconds) for s in speeds]
    assert list(np.asarray(together)) == pytest.approx(apart)


def test_the_trivial_rule_is_the_simulator_with_everything_ready_at_once():
    fabric = over(0.2 * MB)
    assert simulate_step(work(ready=(0.0, 0.0)), fabric, 2).seconds == pytest.approx(trivial_step(work(), fabric, 2))


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 1)), min_size=1, max_size=6),
    st.floats(0.05, 4),
    st.floats(0, 0.6),
)
def test_the_simulator_agrees_with_a_clock_that_ticks(buckets, bandwidth, slowdown):
    ready = tuple(sorted(part for part, _ in buckets))
    sizes = tuple(size for _, size in buckets)
    step = simulate_step(work(ready=ready, sizes=sizes, slowdown=slowdown), over(bandwidth), 2)
    assert float(step.seconds) == pytest.approx(ticking(ready, sizes, bandwidth, slowdown), abs=0.02)


def ticking(ready, sizes, bandwidth, slowdown, tick=0.001):
    """Return the seconds of a step of `work`, by letting a thousandth of a second pass at a time."""
    computed, now, left, sending = 0.0, 0.0, list(sizes), 0
    while computed < 2.0 - 1e-9 or sending < len(sizes):
        busy = sending < len(sizes) and computed >= ready[sending] * 2.0 - 1e-9
        if busy:
            left[sending] -= bandwidth * tick
            sending += left[sending] <= 1e-12
        computed = min(2.0, computed + tick * (1 - slowdown if busy else 1))
        now += tick
    return 1.0 + now + 0.5


def test_a_thousand_ranks_are_no_more_work_than_two():
    assert simulate_step(work(spread=0.01), over(1e9, latency=1e-5), 1024).seconds > 3.5
