"""One step as lanes: what a rank computes, and when each bucket of gradients travels."""

import statistics
from collections.abc import Sequence

from paceline.core.units import plural, size
from paceline.records.profile import Bucket, Profile, RankSteps
from paceline.report.figures import Bars, Key, Row, Tick
from paceline.report.seconds import NAMES, ms, ms_ticks, segment, visible

MOST_BUCKETS = 32


def one_step(profile: Profile) -> Bars:
    """Return a step of the slowest rank as lanes: what it computes, and when each bucket of gradients travels."""
    rank = max(range(len(profile.real)), key=lambda rank: statistics.median(profile.real[rank].backward))
    parts = {name: statistics.median(getattr(profile.real[rank], name)) for name in RankSteps.__slots__}
    begin = parts["data"] + parts["copy"] + parts["forward"]
    end = begin + parts["backward"]
    finish = max([end + parts["exchange"], *(begin + bucket.done_real for bucket in profile.buckets)])
    whole = finish + parts["update"]
    order = {"data": "data", "copy": "copy", "forward": "forward", "backward": "backward"}
    segments, at = [], 0.0
    for name, style in order.items():
        segments.append(segment(style, at, parts[name], whole))
        at += parts[name]
    segments += [
        segment("communication", end, finish - end, whole),
        segment("update", finish, parts["update"], whole),
    ]
    lanes = [Row(name=f"rank {rank}", note="computes", total=ms(whole), segments=visible(segments))]
    lanes += [_lane(number, bucket, begin, end, whole) for number, bucket in _shown(profile.buckets)]
    exposed = finish - end
    total = sum(bucket.bytes for bucket in profile.buckets)
    last = max((bucket.done_real for bucket in profile.buckets), default=0.0)
    first = min((bucket.ready_real for bucket in profile.buckets), default=0.0)
    busy = max(last - first, 1e-12)
    hidden = max(0.0, 1 - exposed / busy) if profile.buckets else 0.0
    text = (
        f"{size(total)} of gradients in {plural(len(profile.buckets), 'bucket')}: on their way for {ms(busy)}, "
        f"{100 * hidden:.0f}% of it behind the backward pass; the rank waits {ms(exposed)} for the rest."
        if profile.buckets
        else "A lone rank exchanges nothing."
    )
    return Bars(
        title="",
        alt=text,
        keys=[Key(style="hidden", name="on the way, hidden", share=""), *_keys_of_lanes(profile)],
        rows=lanes,
        ticks=ms_ticks(whole),
        mark=Tick(round(100 * end / whole, 2), "backward ends") if profile.buckets else None,
        note=text,
        is_thin=True,
    )


def _keys_of_lanes(profile: Profile) -> list[Key]:
    styles = ["forward", "backward", *(["communication"] if profile.buckets else []), "update"]
    return [Key(style=style, name=NAMES[style], share="") for style in styles]


def _shown(buckets: Sequence[Bucket]) -> list[tuple[str, Bucket]]:
    """Return the buckets with their names; where there are many, neighbours are drawn as one."""
    if len(buckets) <= MOST_BUCKETS:
        return [(f"bucket {number}", bucket) for number, bucket in enumerate(buckets, 1)]
    width = -(-len(buckets) // MOST_BUCKETS)
    groups = [buckets[start : start + width] for start in range(0, len(buckets), width)]
    return [
        (
            f"buckets {width * index + 1}–{width * index + len(group)}",
            Bucket(
                bytes=sum(b.bytes for b in group),
                ready=min(b.ready for b in group),
                ready_real=min(b.ready_real for b in group),
                done_real=max(b.done_real for b in group),
            ),
        )
        for index, group in enumerate(groups)
    ]


def _lane(name: str, bucket: Bucket, begin: float, end: float, whole: float) -> Row:
    start, done = begin + bucket.ready_real, begin + bucket.done_real
    hidden = segment("hidden", start, max(0.0, min(done, end) - start), whole)
    late = segment("communication", max(start, end), max(0.0, done - max(start, end)), whole)
    return Row(name=name, note=size(bucket.bytes), total=ms(done - start), segments=visible([hidden, late]))
