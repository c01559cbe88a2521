"""The profile of an observed run: buckets as DDP makes them, and the link that explains the exposed communication."""

import pytest

from paceline.observe.journals import ProcessJournal
from paceline.observe.observed_profile import observed_profile
from paceline.records.phases import RankFacts

MB = 1 << 20
PHASES = {
    "data": 0.1, "copy": 0.0, "forward": 0.5, "backward": 1.0, "grad_sync": 0.4, "update": 0.1, "rest": 0.1,
}  # fmt: skip
FACTS = RankFacts(
    first_step=0, hosts=["a", "a"], threads=[1, 1], cores=[1, 1], mode="ddp", device="cpu", parameters=1,
    gradient_bytes=30 * MB, global_batch=16, num_devices=2,
)  # fmt: skip


def profile_of(*waits: float, sizes: list[int]):
    """Return the profile of ranks whose ten steps of 0.22 s each waited this long for gradients."""
    model = {"kind": "model", "name": "Net", "sizes": sizes, "bucket_cap": 25 * MB}
    joined = {"kind": "rank", "rank": 0, "backend": "gloo"}
    ranks = [ProcessJournal([joined, model]) for _ in waits]
    interval = tuple({"phases": PHASES, "waits": [wait] * 10} for wait in waits)
    return observed_profile(ranks, [interval, interval], FACTS, accumulate=1)


def test_buckets_are_filled_from_the_last_parameter():
    profile = profile_of(0.04, 0.04, sizes=[4 * MB, 24 * MB, MB, MB])
    assert profile is not None
    assert [bucket.bytes // MB for bucket in profile.buckets] == [1, 25, 4]
    assert profile.buckets[-1].ready == pytest.approx(0.1), "the backward pass of a step"


def test_the_shortest_wait_is_explained_by_the_link():
    profile = profile_of(0.09, 0.04, sizes=[MB])
    assert profile is not None
    assert profile.bandwidth == pytest.approx(MB / (0.04 - 2 * profile.latency), rel=1e-3)
    slower = profile_of(0.09, 0.08, sizes=[MB])
    assert slower is not None
    assert slower.bandwidth < 0.6 * profile.bandwidth


def test_steps_without_communication_are_the_steps_less_their_gradient_sync():
    profile = profile_of(0.04, 0.04, sizes=[MB])
    assert profile is not None
    assert profile.real[0].step == pytest.approx((0.22,))
    assert profile.free[0].step == pytest.approx((0.18,))
