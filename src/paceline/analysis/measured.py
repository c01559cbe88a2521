"""What a profile says about a step, and about the link it was measured over, in the words of the simulator."""

import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from paceline.analysis.fabric import Link
from paceline.analysis.predict import Doubt
from paceline.analysis.simulate import Workload
from paceline.records.profile import Profile, RankSteps

LANES = {"gloo": 2, "nccl": 1}
"""All-reduces that a backend has under way at once."""
MODEL_ERROR = 0.035
"""By which part a simulated step was off in the lab (standard deviation), beyond the spread of the profile itself."""
LINK_ERROR = 0.02
QUARTILES = 1.349
"""Distance of the quartiles of a normal distribution, in standard deviations."""


def measured_workload(profile: Profile) -> Workload:
    """Return the work of a rank from steps without communication, and what communication costs it in real ones.

    It is that of a part: a step has `profile.accumulate` of them, and buckets are counted from the start of the last.
    """
    parts, update = profile.accumulate, _usual(profile.free, "update")
    computing = _usual(profile.free, "step") - _usual(profile.free, "exchange") - update
    forward, backward = (_usual(profile.free, part) / parts for part in ("forward", "backward"))
    other = max(computing / parts - forward - backward, 0.0)
    ends = max((bucket.ready for bucket in profile.buckets), default=0.0)
    backward = max(backward, ends)
    work = Workload(
        forward=forward,
        backward=backward,
        update=update,
        other=other,
        ready=tuple(bucket.ready / backward for bucket in profile.buckets),
        sizes=tuple(float(bucket.bytes) for bucket in profile.buckets),
        images_per_rank=profile.images_per_rank / parts,
        spread=_spread(profile),
        lanes=LANES.get(profile.backend, 1),
    )
    lost = _lost_speed(profile)
    if profile.device == "cpu" and profile.bandwidth:
        return replace(work, steal=lost / profile.bandwidth)
    return replace(work, slowdown=lost)


def measured_link(profile: Profile) -> Link:
    """Return the link as the profile's all-reduces saw it."""
    return Link(bandwidth=profile.bandwidth, latency=profile.latency)


def measured_doubt(profile: Profile) -> Doubt:
    """Return how sure a prediction from this profile can be."""
    compute = [statistics.median(rank.compute) for rank in profile.free]
    noise = [_scatter(rank.compute) / np.sqrt(len(rank.compute)) for rank in profile.free]
    pace = float(np.mean(noise) / np.mean(compute)) if compute else 0.0
    return Doubt(pace=float(np.hypot(pace, MODEL_ERROR)), inter=LINK_ERROR, intra=LINK_ERROR, latency=0.2, loss=0.5)


def _usual(ranks: Sequence[RankSteps], part: str) -> float:
    """Return the median of a part over steps, averaged over ranks."""
    return statistics.fmean(statistics.median(getattr(rank, part)) for rank in ranks)


def _scatter(values: Sequence[float]) -> float:
    low, high = np.percentile(values, [25, 75])
    return float(high - low) / QUARTILES


def _spread(profile: Profile) -> float:
    """Return how much computing differs, from step to step and from rank to rank."""
    compute = [statistics.median(rank.compute) for rank in profile.free]
    within = statistics.fmean(_scatter(rank.compute) for rank in profile.free)
    between = statistics.stdev(compute) if len(compute) > 1 else 0.0
    return float(np.hypot(within, between) / statistics.fmean(compute))


def _lost_speed(profile: Profile) -> float:
    """Return the part of its speed that computing lost while gradients travelled, from how much later the last came."""
    if not profile.buckets:
        return 0.0
    free, real = profile.buckets[-1].ready, profile.buckets[-1].ready_real
    busy, until = 0.0, 0.0
    for bucket in profile.buckets:
        begins, ends = max(bucket.ready_real, until), min(bucket.done_real, real)
        busy += max(0.0, ends - begins)
        until = max(until, ends)
    return float(np.clip((real - free) / busy, 0.0, 0.9)) if busy > 0.05 * real else 0.0
