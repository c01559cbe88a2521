"""From a profile to the simulator: what was measured comes back, and the profile's own step is predicted."""

from dataclasses import replace

import pytest

from paceline.predict.fabric import Fabric
from paceline.predict.profiled import profile_link, profile_uncertainty, profile_workload
from paceline.predict.simulate import simulate_step
from paceline.records.profile import LinkPoint, Profile, ProfiledBucket, RankSteps

MB = 1e6


def steps(grad_sync: float, wobble: float = 0.0) -> RankSteps:
    """Return eight steps of half a second of computing, and of waiting for gradients."""
    moves = [1 - wobble, 1 + wobble] * 4
    parts = {"data": 0.01, "copy": 0.0, "forward": 0.15, "backward": 0.3, "update": 0.04}
    columns = {name: tuple(value * move for move in moves) for name, value in parts.items()}
    whole = tuple(0.5 * move + grad_sync for move in moves)
    return RankSteps(**columns, grad_sync=(grad_sync,) * 8, step=whole)


PROFILE = Profile(
    world_size=2, ranks_per_node=(1, 1), mode="ddp", backend="gloo", device="cpu", model="m", precision="fp32",
    compress="none", parameters=1_000_000, gradient_bytes=4_000_000, global_batch=64, samples_per_rank=32, accumulate=1,
    threads=1, free=(steps(0.0),) * 2, real=(steps(0.2),) * 2,
    buckets=(
        ProfiledBucket(bytes=1_000_000, ready=0.1, ready_real=0.1, done_real=0.2),
        ProfiledBucket(bytes=3_000_000, ready=0.3, ready_real=0.3, done_real=0.6),
    ),
    link=(
        LinkPoint(bytes=4096, in_flight=1, samples=(0.001, 0.0008)),
        LinkPoint(bytes=5_000_000, in_flight=2, samples=(1.2, 1.0, 1.1)),
    ),
    latency=0.0004, bandwidth=10 * MB,
)  # fmt: skip


def test_the_work_of_a_rank_is_that_of_steps_without_communication():
    work = profile_workload(PROFILE)
    assert work.compute == pytest.approx(0.5)
    assert work.other == pytest.approx(0.01)
    assert work.ready == pytest.approx((1 / 3, 1.0))
    assert work.sizes == (1e6, 3e6)
    assert (work.in_flight, work.spread, work.steal) == (2, 0.0, 0.0)


def test_the_profiled_step_itself_is_predicted():
    fabric = Fabric(inter=replace(profile_link(PROFILE), latency=0.0))
    assert simulate_step(profile_workload(PROFILE), fabric, 2).seconds == pytest.approx(0.8)


def test_a_profile_of_several_parts_gives_the_work_of_one():
    """Its passes are sums over all parts; its buckets are counted from the start of the last."""
    whole = steps(0.0)
    columns = {name: tuple(2 * value for value in getattr(whole, name)) for name in ("data", "copy", "forward")}
    backward = tuple(2 * value for value in whole.backward)
    twice = replace(whole, **columns, backward=backward, step=(0.96,) * 8)
    profile = replace(PROFILE, accumulate=2, samples_per_rank=64, global_batch=128, free=(twice,) * 2)
    work, single = profile_workload(profile), profile_workload(PROFILE)
    for name in ("forward", "backward", "update", "other", "ready", "sizes", "samples_per_rank"):
        assert getattr(work, name) == pytest.approx(getattr(single, name)), name
    fabric = Fabric(inter=replace(profile_link(PROFILE), latency=0.0))
    step = simulate_step(work, fabric, 2, accumulate=2)
    assert step.seconds == pytest.approx(0.8 + 0.46), "the profiled step, and the computing of one more part"


def test_gradients_that_come_later_in_real_steps_tell_what_a_cpu_loses():
    late = replace(PROFILE.buckets[1], ready_real=0.32, done_real=0.62)
    work = profile_workload(replace(PROFILE, buckets=(PROFILE.buckets[0], late)))
    assert work.steal == pytest.approx(0.02 / 0.1 / (10 * MB)), "0.02 s in the 0.1 s in which the wire was busy"
    on_gpu = profile_workload(replace(PROFILE, buckets=(PROFILE.buckets[0], late), device="cuda"))
    assert (on_gpu.steal, on_gpu.slowdown) == (0.0, pytest.approx(0.2))


def test_steps_that_differ_make_stragglers_and_uncertainty():
    shaky = replace(PROFILE, free=(steps(0.0, wobble=0.05),) * 2)
    assert profile_workload(shaky).spread > 0.05
    assert profile_uncertainty(shaky).pace > profile_uncertainty(PROFILE).pace
