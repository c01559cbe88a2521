"""From a profile to the input of the simulator: the workload of a rank, the link, and their uncertainty."""

import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from paceline.predict.fabric import Link
from paceline.predict.simulate import Workload
from paceline.predict.uncertainty import Uncertainty
from paceline.records.profile import Profile, RankSteps

IN_FLIGHT = {"gloo": 2, "nccl": 1}
"""All-reduces that a backend has in flight at once."""
MODEL_ERROR = 0.035
"""Relative error of a simulated step in the lab (standard deviation), beyond the spread of the profile itself."""
LINK_ERROR = 0.02
ESTIMATED_LINK_ERROR = 0.4
"""Uncertainty of a link that was not measured, but estimated from the exposed communication of a foreign script."""
QUARTILES = 1.349
"""Distance of the quartiles of a normal distribution, in standard deviations."""


def profile_workload(profile: Profile) -> Workload:
    """Return the workload of a rank from steps without communication, with the slowdown from real steps.

    It is the workload of a micro-batch: a step has `profile.accumulate` of them, and the last one sends the buckets.
    """
    parts, update = profile.accumulate, _usual(profile.free, "update")
    computing = _usual(profile.free, "step") - _usual(profile.free, "grad_sync") - update
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
        samples_per_rank=profile.samples_per_rank / parts,
        spread=_spread(profile),
        in_flight=IN_FLIGHT[_backend(profile)],
    )
    lost = _lost_speed(profile)
    if profile.device == "cpu" and profile.bandwidth:
        return replace(work, steal=lost / profile.bandwidth)
    return replace(work, slowdown=lost)


def profile_link(profile: Profile) -> Link:
    """Return the link from the profile's all-reduces."""
    return Link(bandwidth=profile.bandwidth, latency=profile.latency)


def profile_uncertainty(profile: Profile) -> Uncertainty:
    """Return the uncertainty of a prediction from this profile; a busy host, whose real steps vary, adds to it."""
    compute = [statistics.median(rank.compute) for rank in profile.free]
    noise = [_scatter(rank.compute) / np.sqrt(len(rank.compute)) for rank in profile.free]
    busy = statistics.fmean(_scatter(rank.step) / statistics.median(rank.step) for rank in profile.real) / 2
    pace = float(np.mean(noise) / np.mean(compute)) + busy
    pace = float(np.hypot(pace, MODEL_ERROR))
    link = ESTIMATED_LINK_ERROR if is_observed(profile) else LINK_ERROR
    return Uncertainty(pace=pace, inter=link, intra=link, latency=0.2, loss=0.5)


def is_observed(profile: Profile) -> bool:
    """Tell whether a profile is of a foreign script, so that its link is an estimate from exposed communication."""
    return profile.world_size > 1 and not profile.link


def _backend(profile: Profile) -> str:
    """Return the backend that ranks on such devices use; a lone rank has none."""
    usual = "gloo" if profile.device == "cpu" else "nccl"
    return profile.backend if profile.backend in IN_FLIGHT else usual


def _usual(ranks: Sequence[RankSteps], part: str) -> float:
    """Return the median of a phase over steps, averaged over ranks."""
    return statistics.fmean(statistics.median(getattr(rank, part)) for rank in ranks)


def _scatter(values: Sequence[float]) -> float:
    low, high = np.percentile(values, [25, 75])
    return float(high - low) / QUARTILES


def _spread(profile: Profile) -> float:
    """Return the relative spread of the compute time over steps and ranks."""
    compute = [statistics.median(rank.compute) for rank in profile.free]
    within = statistics.fmean(_scatter(rank.compute) for rank in profile.free)
    between = statistics.stdev(compute) if len(compute) > 1 else 0.0
    return float(np.hypot(within, between) / statistics.fmean(compute))


def _lost_speed(profile: Profile) -> float:
    """Return the fraction of speed that computing loses during communication, from the delay of the last bucket."""
    if not profile.buckets:
        return 0.0
    free, real = profile.buckets[-1].ready, profile.buckets[-1].ready_real
    busy, until = 0.0, 0.0
    for bucket in profile.buckets:
        begins, ends = max(bucket.ready_real, until), min(bucket.done_real, real)
        busy += max(0.0, ends - begins)
        until = max(until, ends)
    return float(np.clip((real - free) / busy, 0.0, 0.9)) if busy > 0.05 * real else 0.0
