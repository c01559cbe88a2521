"""One step as a timeline: the phases of a rank, and when each gradient bucket is sent."""

import statistics
from collections.abc import Sequence

from paceline.core.units import plural, size, step_time
from paceline.records.profile import Profile, ProfiledBucket, RankSteps
from paceline.report.figures import Bars, Key, Row, Tick
from paceline.report.time_bars import HIDDEN, LABELS, ms_ticks, segment, visible

MOST_BUCKETS = 32


def one_step(profile: Profile) -> Bars:
    """Return a step of the slowest rank as a timeline, with the transfer of each gradient bucket."""
    rank = max(range(len(profile.real)), key=lambda rank: statistics.median(profile.real[rank].backward))
    parts = {name: statistics.median(getattr(profile.real[rank], name)) for name in RankSteps.__slots__}
    begin = parts["data"] + parts["copy"] + parts["forward"]
    end = begin + parts["backward"]
    finish = max([end + parts["grad_sync"], *(begin + bucket.done_real for bucket in profile.buckets)])
    whole = finish + parts["update"]
    segments, at = [], 0.0
    for name in ("data", "copy", "forward", "backward"):
        segments.append(segment(name, at, parts[name], whole))
        at += parts[name]
    segments += [
        segment("communication", end, finish - end, whole),
        segment("update", finish, parts["update"], whole),
    ]
    rows = [Row(name=f"rank {rank}", note="computes", total=step_time(whole), segments=visible(segments))]
    rows += [_bucket_row(number, bucket, begin, end, whole) for number, bucket in _shown(profile.buckets)]
    exposed = finish - end
    total = sum(bucket.bytes for bucket in profile.buckets)
    last = max((bucket.done_real for bucket in profile.buckets), default=0.0)
    first = min((bucket.ready_real for bucket in profile.buckets), default=0.0)
    busy = max(last - first, 1e-12)
    hidden = max(0.0, 1 - exposed / busy) if profile.buckets else 0.0
    text = (
        f"{size(total)} of gradients in {plural(len(profile.buckets), 'bucket')}: in flight for {step_time(busy)}, "
        f"{100 * hidden:.0f}% of it hidden behind the backward pass; {step_time(exposed)} is exposed."
        if profile.buckets
        else "A lone rank has no communication."
    )
    return Bars(
        title="",
        alt=text,
        keys=[Key(style=HIDDEN, name=LABELS[HIDDEN], share=""), *_keys_of_phases(profile)],
        rows=rows,
        ticks=ms_ticks(whole),
        mark=Tick(round(100 * end / whole, 2), "backward ends") if profile.buckets else None,
        note=text,
        is_thin=True,
    )


def _keys_of_phases(profile: Profile) -> list[Key]:
    styles = ["forward", "backward", *(["communication"] if profile.buckets else []), "update"]
    return [Key(style=style, name=LABELS[style], share="") for style in styles]


def _shown(buckets: Sequence[ProfiledBucket]) -> list[tuple[str, ProfiledBucket]]:
    """Return the buckets with their names; if there are many, neighbours are merged."""
    if len(buckets) <= MOST_BUCKETS:
        return [(f"bucket {number}", bucket) for number, bucket in enumerate(buckets, 1)]
    width = -(-len(buckets) // MOST_BUCKETS)
    groups = [buckets[start : start + width] for start in range(0, len(buckets), width)]
    return [
        (
            f"buckets {width * index + 1}–{width * index + len(group)}",
            ProfiledBucket(
                bytes=sum(b.bytes for b in group),
                ready=min(b.ready for b in group),
                ready_real=min(b.ready_real for b in group),
                done_real=max(b.done_real for b in group),
            ),
        )
        for index, group in enumerate(groups)
    ]


def _bucket_row(name: str, bucket: ProfiledBucket, begin: float, end: float, whole: float) -> Row:
    start, done = begin + bucket.ready_real, begin + bucket.done_real
    hidden = segment(HIDDEN, start, max(0.0, min(done, end) - start), whole)
    late = segment("communication", max(start, end), max(0.0, done - max(start, end)), whole)
    return Row(name=name, note=size(bucket.bytes), total=step_time(done - start), segments=visible([hidden, late]))
