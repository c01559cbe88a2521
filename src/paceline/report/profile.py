"""A profile as text: the step, the buckets, the link and the ranks on one screen."""

from statistics import median

from paceline.core.units import bit_rate, plural, size, step_time
from paceline.records.profile import Profile, RankSteps
from paceline.report.tables import table

PARTS = ("data", "copy", "forward", "backward", "exchange", "update", "step")
MOST_ROWS = 8


def profile_text(profile: Profile) -> str:
    """Return what was measured."""
    parts = [_head(profile), _steps(profile), _buckets(profile)]
    if profile.world_size > 1:
        parts += [_link(profile), _ranks(profile)]
    return "\n\n".join(parts)


def _head(profile: Profile) -> str:
    ranks = plural(profile.world_size, "rank")
    nodes = "" if len(profile.ranks_per_node) == 1 else f" on {len(profile.ranks_per_node)} hosts"
    return (
        f"{profile.model}, {size(profile.gradient_bytes)} of gradients, {profile.images_per_rank} images a rank, "
        f"{ranks}{nodes}, {profile.device}"
    )


def _steps(profile: Profile) -> str:
    rows = []
    for name, ranks in (("without communication", profile.free), ("real", profile.real)):
        rows.append([name, *(step_time(_median(ranks, part)) for part in PARTS)])
    return table(["step", *PARTS], rows)


def _median(ranks: tuple[RankSteps, ...], part: str) -> float:
    return median(seconds for rank in ranks for seconds in getattr(rank, part))


def _buckets(profile: Profile) -> str:
    rows = [
        [str(place), size(bucket.bytes), *map(step_time, (bucket.ready, bucket.ready_real, bucket.done_real))]
        for place, bucket in enumerate(profile.buckets)
    ]
    if len(rows) > MOST_ROWS:
        rows = [*rows[: MOST_ROWS - 2], ["…"] * 5, rows[-1]]
    return table(["bucket", "size", "ready without communication", "ready", "done"], rows)


def _link(profile: Profile) -> str:
    rows = [[size(point.bytes), str(point.in_flight), step_time(point.seconds)] for point in profile.link]
    found = f"link: {bit_rate(profile.bandwidth)}, {1e6 * profile.latency:.0f} µs a message ({profile.backend})"
    return table(["all-reduce of", "at once", "takes"], rows) + f"\n{found}"


def _ranks(profile: Profile) -> str:
    means, spreads = profile.compute_means, profile.compute_spreads
    order = sorted(range(profile.world_size), key=lambda rank: -means[rank])[:MOST_ROWS]
    rows = [[str(rank), step_time(means[rank]), f"±{100 * spreads[rank] / means[rank]:.0f}%"] for rank in order]
    return table(["slowest ranks", "computing", "from step to step"], rows)
