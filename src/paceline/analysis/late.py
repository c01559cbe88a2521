"""Ranks for which the others wait: slow loaders, slow ranks, and ranks that take turns at it."""

from collections.abc import Iterator

import numpy as np

from paceline.analysis.evidence import LEAST, Cause, Evidence, Finding, low_median
from paceline.analysis.phases import Ranks
from paceline.analysis.remedies import LEAST_GAIN, Remedy
from paceline.core.units import step_time

LEAST_UNEVEN = 0.25
"""The same for ranks that take turns at being late: some of it is in the nature of many ranks."""
OFTEN = 0.75
"""Part of the steps in which a slow rank is the last: one that is late now and then is not slow, it was disturbed."""
COMPUTE = ("copy", "forward", "backward", "update")


def find_late_ranks(run: Evidence) -> Iterator[Finding]:
    """Ranks for which the others wait, because their data or their computing takes longer."""
    if run.split.world_size == 1:
        return
    steady = run.split.steady
    data = steady.per_step("data")
    compute = sum((steady.per_step(phase) for phase in COMPUTE), start=np.zeros_like(data))
    looks: tuple[tuple[Cause, Ranks], ...] = (("slow loader", data), ("slow rank", compute))
    for cause, own in looks:
        excess = own - _usual_of_others(own)
        late = int(excess.argmax())
        others_wait = low_median(np.delete(steady.per_step("straggler"), late))
        lost = min(float(excess[late]), others_wait)
        share = run.share_of_steps(lost)
        if share < LEAST:
            continue
        group = [int(rank) for rank in np.flatnonzero(excess > excess[late] / 2)]
        if steady.last[group].sum() < OFTEN * steady.steps:
            continue
        words = _loader_words if cause == "slow loader" else _rank_words
        sentence, remedies = words(run, group, own, run.gain(share))
        yield Finding(cause=cause, share=share, sentence=sentence, remedies=remedies)


def find_uneven(run: Evidence) -> Iterator[Finding]:
    """Ranks that take turns at being late."""
    steady, ranks = run.split.steady, run.split.world_size
    if ranks == 1:
        return
    waited = float(steady.per_step("straggler").min())  # the one that waits least has no other excuse
    share = run.share_of_steps(waited)
    if share >= LEAST_UNEVEN:
        sentence = (
            f"no rank is always the last, but even the one that waits least waits {step_time(waited)} a step for others"
        )
        yield Finding(cause="uneven ranks", share=share, sentence=sentence, remedies=())


def _loader_words(run: Evidence, group: list[int], own: Ranks, gain: float) -> tuple[str, tuple[Remedy, ...]]:
    slow, usual = float(own[group[0]]), low_median(own)
    who, verb = _who(run, group), "waits" if len(group) == 1 else "wait"
    sentence = f"{who} {verb} {step_time(slow)} a step for data, the others {step_time(usual)}, and then for it"
    workers = max(run.config.workers + 1, int(np.ceil(slow / max(run.step - slow, 1e-3))))
    host = run.split.facts.hosts[group[0]]
    return sentence, (
        Remedy(words=f"a faster disk or less load on {host}", gain=gain, why="as fast as the other ranks"),
        Remedy(words=f"--workers {min(workers, 64)}", gain=gain, why="batches are prepared while others are used"),
    )


def _rank_words(run: Evidence, group: list[int], own: Ranks, gain: float) -> tuple[str, tuple[Remedy, ...]]:
    steady, rank = run.split.steady, group[0]
    slow, usual = float(own[rank]), low_median(own)
    excess = slow - usual
    starved = float(steady.starved[rank]) / steady.steps
    more_cpu = float(steady.cpu[rank]) / max(low_median(steady.cpu), 1e-9)
    if starved > excess / 3:
        reason = f"it has no core for {step_time(starved)} of it: something else uses them"
    elif more_cpu > 1.2:
        reason = f"it takes {more_cpu:.1f}× the CPU time of the others: more work, or a slower processor"
    else:
        reason = "it takes no more CPU time than the others: it waits for something of its own"
    verb = "computes" if len(group) == 1 else "compute"
    sentence = (
        f"{_who(run, group)} {verb} {step_time(slow)} a step, {slow / max(usual, 1e-9):.1f}× as long as the others, "
        f"which wait; {reason}"
    )
    host = run.split.facts.hosts[rank]
    remedies = [
        Remedy(words=f"see what slows {host} down, or use another", gain=gain, why="as fast as the other ranks")
    ]
    left = run.split.world_size - len(group)
    without = usual * run.split.world_size / left
    alone = run.gain(run.share_of_steps(slow - without))
    if alone >= LEAST_GAIN:
        remedies.append(Remedy(words=f"train on the other {left}", gain=alone, why="they do the work of all"))
    return sentence, tuple(remedies)


def _who(run: Evidence, group: list[int]) -> str:
    hosts = sorted({run.split.facts.hosts[rank] for rank in group})
    named = ", ".join(map(str, group[:8])) + (" …" if len(group) > 8 else "")
    return f"rank{'s' if len(group) > 1 else ''} {named} on {', '.join(hosts[:3])}"


def _usual_of_others(values: Ranks) -> Ranks:
    """Return for every rank the median of the other ranks, the lower of two."""
    order = np.sort(values)
    middle = (len(values) - 2) // 2
    position = np.searchsorted(order, values, side="left")
    return np.where(position <= middle, order[middle + 1], order[middle])
