"""A profile for `paceline predict` from an observed run: measured steps, DDP's buckets, and an estimate of the link."""

from collections.abc import Sequence
from statistics import median

from paceline.observe.journals import Line, ProcessJournal
from paceline.records.phases import RankFacts
from paceline.records.profile import Profile, ProfiledBucket, RankSteps

FIRST_BUCKET = 1 << 20
"""Bytes after which DDP closes its first bucket, whatever bucket_cap_mb is."""
BUCKET = 25 << 20
PARTS = ("data", "copy", "forward", "backward", "grad_sync", "update")
LATENCY = 50e-6
"""Seconds per message at most; a small model's exposed communication is mostly latency."""
FASTEST, SLOWEST, HALVINGS = 1e12, 1e3, 60


def observed_profile(
    ranks: Sequence[ProcessJournal], intervals: Sequence[tuple[Line, ...]], facts: RankFacts, *, accumulate: int
) -> Profile | None:
    """Return the profile of the steps after the first interval; None if there are no later ones.

    Every step communicates, so steps without communication are the same steps less their gradient sync.
    """
    later = intervals[1:]
    if not later:
        return None
    real = [[_step(lines[index]) for lines in later] for index in range(len(ranks))]
    free = [[step | {"grad_sync": 0.0, "step": step["step"] - step["grad_sync"]} for step in steps] for steps in real]
    backward = median(step["backward"] for steps in real for step in steps) / accumulate
    exposed = median(min(waits) for lines in later for waits in zip(*(line["waits"] for line in lines), strict=True))
    model = ranks[0].first("model") or ranks[0].first("trains")
    buckets = _buckets(model, backward, exposed)
    size, joined = len(ranks), ranks[0].first("rank")
    latency = min(LATENCY, exposed / (4 * (size - 1))) if size > 1 else 0.0
    return Profile(
        world_size=size,
        ranks_per_node=tuple(facts.hosts.count(host) for host in dict.fromkeys(facts.hosts)),
        mode=facts.mode,
        backend=joined.get("backend", "none").rpartition(":")[2] if size > 1 else "none",
        device=facts.device,
        model=model.get("name", "unknown").lower(),
        precision="fp32",
        compress="none",
        parameters=facts.parameters,
        gradient_bytes=facts.gradient_bytes,
        global_batch=facts.global_batch,
        samples_per_rank=-(-facts.global_batch // size),
        accumulate=accumulate,
        threads=facts.threads[0],
        free=tuple(_rank_steps(steps) for steps in free),
        real=tuple(_rank_steps(steps) for steps in real),
        buckets=buckets,
        link=(),
        latency=latency,
        bandwidth=_bandwidth(buckets, backward, exposed, size, latency) if size > 1 else 0.0,
    )


def _step(line: Line) -> dict[str, float]:
    """Return the mean step of an interval by phase."""
    number = len(line["waits"])
    parts = {name: line["phases"][name] / number for name in PARTS}
    return parts | {"step": sum(parts.values()) + line["phases"]["rest"] / number}


def _rank_steps(steps: Sequence[dict[str, float]]) -> RankSteps:
    return RankSteps(**{name: tuple(step[name] for step in steps) for name in (*PARTS, "step")})


def _buckets(model: Line, backward: float, exposed: float) -> tuple[ProfiledBucket, ...]:
    """Return DDP's buckets: parameters in reverse order; gradients are assumed to become ready byte by byte."""
    sizes, open_size = [], 0
    for size in reversed(model.get("sizes", [])):
        open_size += size
        if open_size >= (model.get("bucket_cap", BUCKET) if sizes else FIRST_BUCKET):
            sizes.append(open_size)
            open_size = 0
    sizes += [open_size] * (open_size > 0)
    ready = [backward * sum(sizes[: index + 1]) / sum(sizes) for index in range(len(sizes))]
    return tuple(
        ProfiledBucket(bytes=size, ready=at, ready_real=at, done_real=backward + exposed)
        for size, at in zip(sizes, ready, strict=True)
    )


def _bandwidth(buckets: Sequence[ProfiledBucket], backward: float, exposed: float, ranks: int, latency: float) -> float:
    """Return the bus bandwidth at which a ring all-reduce of the buckets ends when it did, in bytes per second."""
    low, high = SLOWEST, FASTEST
    for _ in range(HALVINGS):
        guess, end = (low * high) ** 0.5, 0.0
        for bucket in buckets:
            seconds = 2 * (ranks - 1) * (bucket.bytes / ranks / guess + latency)
            end = max(end, bucket.ready) + seconds
        low, high = (guess, high) if end - backward > exposed else (low, guess)
    return (low * high) ** 0.5
