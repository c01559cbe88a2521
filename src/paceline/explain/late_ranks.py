"""Ranks that the others wait for: slow loaders, slow ranks, and ranks that are late in turn."""

from collections.abc import Iterator

import numpy as np

from paceline.core.units import plural, ranks_text, step_time
from paceline.explain.run_numbers import LEAST, BottleneckKind, RunBottleneck, RunNumbers, low_median
from paceline.explain.suggestions import LEAST_GAIN, Suggestion
from paceline.explain.time_split import Ranks
from paceline.records.phases import COMPUTE_PHASES

LEAST_UNEVEN = 0.25
"""The threshold for ranks that are late in turn: with many ranks some of it is normal."""
OFTEN = 0.75
"""Fraction of the steps in which a slow rank finishes last; below it the delay is only occasional."""
MOST_NAMED = 8


def find_late_ranks(run: RunNumbers) -> Iterator[RunBottleneck]:
    """Ranks that the others wait for, because their data loading or computing takes longer."""
    if run.split.world_size == 1:
        return
    steady_state = run.split.steady_state
    data = steady_state.per_step("data")
    compute = sum((steady_state.per_step(phase) for phase in COMPUTE_PHASES), start=np.zeros_like(data))
    candidates: tuple[tuple[BottleneckKind, Ranks], ...] = (("slow loader", data), ("slow rank", compute))
    for kind, own in candidates:
        excess = own - _usual_of_others(own)
        late = int(excess.argmax())
        others_wait = low_median(np.delete(steady_state.per_step("straggler"), late))
        lost = min(float(excess[late]), others_wait)
        share = run.share_of_steps(lost)
        if share < LEAST:
            continue
        group = [int(rank) for rank in np.flatnonzero(excess > excess[late] / 2)]
        if steady_state.last[group].sum() < OFTEN * steady_state.steps:
            continue
        describe = _slow_loader if kind == "slow loader" else _slow_rank
        sentence, suggestions = describe(run, group, own, run.gain(share))
        yield RunBottleneck(kind=kind, share=share, sentence=sentence, suggestions=suggestions)


def find_uneven(run: RunNumbers) -> Iterator[RunBottleneck]:
    """Ranks that are late in turn."""
    steady_state, ranks = run.split.steady_state, run.split.world_size
    if ranks == 1:
        return
    waited = float(steady_state.per_step("straggler").min())  # the minimum over ranks
    share = run.share_of_steps(waited)
    if share >= LEAST_UNEVEN:
        sentence = f"no rank is always the last, but every rank waits at least {step_time(waited)} per step for others"
        yield RunBottleneck(kind="uneven ranks", share=share, sentence=sentence, suggestions=())


def _slow_loader(run: RunNumbers, group: list[int], own: Ranks, gain: float) -> tuple[str, tuple[Suggestion, ...]]:
    slow, usual = float(own[group[0]]), low_median(own)
    who, verb = ranks_text(group, most=MOST_NAMED), "waits" if len(group) == 1 else "wait"
    sentence = (
        f"{_who(run, group)} {verb} {step_time(slow)} per step for data (others {step_time(usual)}); "
        f"the other ranks wait for {who}"
    )
    workers = max(run.config.workers + 1, int(np.ceil(slow / max(run.step - slow, 1e-3))))
    host = run.split.facts.hosts[group[0]]
    return sentence, (
        Suggestion(action=f"a faster disk or less load on {host}", gain=gain, why="as fast as the other ranks"),
        Suggestion(action=f"--workers {min(workers, 64)}", gain=gain, why="loads batches in the background"),
    )


def _slow_rank(run: RunNumbers, group: list[int], own: Ranks, gain: float) -> tuple[str, tuple[Suggestion, ...]]:
    steady_state, rank = run.split.steady_state, group[0]
    slow, usual = float(own[rank]), low_median(own)
    excess = slow - usual
    cpu_wait = float(steady_state.cpu_wait[rank]) / steady_state.steps
    more_cpu = float(steady_state.cpu[rank]) / max(low_median(steady_state.cpu), 1e-9)
    if cpu_wait > excess / 3:
        reason = f"it has no core for {step_time(cpu_wait)} of it: other programs use them"
    elif more_cpu > 1.2:
        reason = f"it takes {more_cpu:.1f}× the CPU time of the others: more work, or a slower processor"
    else:
        reason = "it takes no more CPU time than the others, so it is blocked by something local"
    verb = "computes" if len(group) == 1 else "compute"
    sentence = (
        f"{_who(run, group)} {verb} for {step_time(slow)} per step, {slow / max(usual, 1e-9):.1f}× as long as the "
        f"others, which wait; {reason}"
    )
    host = run.split.facts.hosts[rank]
    suggestions = [
        Suggestion(action=f"check {host} for other load, or replace it", gain=gain, why="as fast as the other ranks")
    ]
    left = run.split.world_size - len(group)
    without = usual * run.split.world_size / left
    alone = run.gain(run.share_of_steps(slow - without))
    if alone >= LEAST_GAIN:
        suggestions.append(
            Suggestion(
                action=f"leave out {ranks_text(group, most=MOST_NAMED)}",
                gain=alone,
                why=f"train on the remaining {plural(left, 'rank')}",
            )
        )
    return sentence, tuple(suggestions)


def _who(run: RunNumbers, group: list[int]) -> str:
    hosts = sorted({run.split.facts.hosts[rank] for rank in group})
    return f"{ranks_text(group, most=MOST_NAMED)} on {', '.join(hosts[:3])}"


def _usual_of_others(values: Ranks) -> Ranks:
    """Return for every rank the median of the other ranks, the lower of two."""
    order = np.sort(values)
    middle = (len(values) - 2) // 2
    position = np.searchsorted(order, values, side="left")
    return np.where(position <= middle, order[middle + 1], order[middle])
