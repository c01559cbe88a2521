"""Bottlenecks of a run: those that cost at least 10% of its time, the largest first, with suggestions."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from paceline.core.config import Config
from paceline.core.units import bit_rate, duration, size, step_time
from paceline.explain.late_ranks import find_late_ranks, find_uneven
from paceline.explain.run_numbers import LEAST, RunBottleneck, RunNumbers, low_median
from paceline.explain.suggestions import Suggestion, step_scenario, suggest_changes
from paceline.explain.time_split import TimeSplit
from paceline.records.profile import Profile

FEWEST_STEPS = 20
"""Steps of a run from which its bottlenecks are named: below that, start-up and single records decide."""
LEAST_CROWDED = 0.25
"""The threshold for other programs: busy ranks already share their cores with communication threads."""


def find_bottlenecks(split: TimeSplit, config: Config, profile: Profile | None = None) -> tuple[RunBottleneck, ...]:
    """Return the bottlenecks of a run: first oversubscribed cores, then by size."""
    run = RunNumbers(split=split, config=config, profile=profile)
    if split.total.steps < FEWEST_STEPS or run.seconds <= 0:
        return ()
    finders: tuple[Callable[[RunNumbers], Iterator[RunBottleneck]], ...] = (
        find_threads, find_slow_link, find_late_ranks, find_data, find_pauses, find_uneven,
    )  # fmt: skip
    found = [bottleneck for find in finders for bottleneck in find(run)]
    # Oversubscribed cores distort all other phases, so they come first.
    return tuple(sorted(found, key=lambda bottleneck: (bottleneck.kind != "threads", -bottleneck.share)))


def find_slow_link(run: RunNumbers) -> Iterator[RunBottleneck]:
    """Exposed communication: all-reduces that end after the backward pass."""
    waited = float(run.split.steady_state.per_step("communication").mean())
    share = run.share_of_steps(waited)
    if run.split.world_size == 1 or share < LEAST:
        return
    scenario = step_scenario(run.split, run.config, run.profile)
    rate = bit_rate(float(scenario.fabric.inter.bandwidth))
    sent, ranks = size(scenario.work.gradient_bytes), run.split.world_size
    if scenario.from_profile:
        needed, hidden = scenario.wire_seconds, max(0.0, scenario.wire_seconds - waited)
        seen = (
            f"{sent} of gradients per step need {step_time(needed)} on this link ({rate}), of which "
            f"{step_time(hidden)} is hidden behind the backward pass"
        )
    else:
        seen = (
            f"exposed communication of {sent} of gradients is {step_time(waited)} of {step_time(run.step)} per step, "
            f"which corresponds to a link of at most {rate}"
        )
    work = scenario.work
    alone = float(ranks * (work.forward + work.backward + work.other) + work.update)
    verdict = f"{ranks} ranks are slower than one because " if alone < run.step else "the link limits the ranks: "
    suggestions = tuple(
        replace(found, gain=run.gain_of_steps(found.gain)) for found in suggest_changes(scenario, run.config)
    )
    yield RunBottleneck(kind="link", share=share, sentence=verdict + seen, suggestions=suggestions)


def find_data(run: RunNumbers) -> Iterator[RunBottleneck]:
    """Waiting for batches on all ranks."""
    steady_state = run.split.steady_state
    waited = low_median(steady_state.per_step("data"))
    share = run.share_of_steps(waited)
    if share < LEAST:
        return
    workers, rest = run.config.workers, max(run.step - waited, 1e-9)
    needed = max(1, workers + 1, int(np.ceil(max(workers, 1) * (waited + (rest if workers else 0.0)) / rest)))
    loading = f"with --workers {workers}" if workers else "in the training process"
    suggestion = Suggestion(action=f"--workers {needed}", gain=run.gain(share), why="loads batches in the background")
    yield RunBottleneck(
        kind="data",
        share=share,
        sentence=f"every rank waits {step_time(waited)} of {step_time(run.step)} per step for data, loaded {loading}",
        suggestions=(suggestion,),
    )


def find_threads(run: RunNumbers) -> Iterator[RunBottleneck]:
    """Threads that wait for a core: because there are more threads than cores, or because of other programs."""
    facts, steady_state = run.split.facts, run.split.steady_state
    cpu_wait = steady_state.cpu_wait / np.maximum(steady_state.seconds, 1e-9)
    rank = int(cpu_wait.argmax())
    host = facts.hosts[rank]
    here = [other for other, name in enumerate(facts.hosts) if name == host]
    threads, cores = sum(facts.threads[other] for other in here), max(facts.cores[other] for other in here)
    share = float(min(cpu_wait[other] for other in here))
    if share < (LEAST if threads > cores else LEAST_CROWDED):
        return
    lost = f"for {100 * share:.0f}% of the time a runnable thread of a rank on {host} has no core"
    if threads > cores:
        fewer = max(1, cores // len(here))
        why = f"{len(here)} × {fewer} threads for {cores} cores; the gain is a lower bound"
        yield RunBottleneck(
            kind="threads",
            share=share,
            sentence=f"{threads} threads share the {cores} cores of {host}: {lost}",
            suggestions=(Suggestion(action=f"--threads {fewer}", gain=run.gain(share), why=why),),
        )
    else:
        suggestion = Suggestion(
            action=f"find other programs on {host}", gain=run.gain(share), why="other programs use the cores"
        )
        yield RunBottleneck(
            kind="cores", share=share, sentence=f"other programs use {host}: {lost}", suggestions=(suggestion,)
        )


def find_pauses(run: RunNumbers) -> Iterator[RunBottleneck]:
    """Time between steps: checkpoints, evaluations, records."""
    saving = float(run.split.total.phases["save"].max())
    share = saving / run.seconds
    if share >= LEAST:
        suggestions = [
            Suggestion(action=f"--save-every {_twice(run)}", gain=run.gain(share / 2), why="half as many checkpoints")
        ]
        if not run.config.save_async:
            suggestions.insert(
                0,
                Suggestion(
                    action="--save-async", gain=run.gain(share), why="training continues while a checkpoint is written"
                ),
            )
        sentence = f"checkpoints take {duration(saving)} of {duration(run.seconds)}"
        yield RunBottleneck(kind="checkpoint", share=share, sentence=sentence, suggestions=tuple(suggestions))
    evaluating = run.split.evaluating
    share = evaluating / run.seconds
    if share >= LEAST:
        suggestions = [
            Suggestion(action="a larger --eval-every", gain=run.gain(share / 2), why="half as many evaluations")
        ]
        sentence = f"evaluations between steps take {duration(evaluating)} of {duration(run.seconds)}"
        yield RunBottleneck(kind="evaluation", share=share, sentence=sentence, suggestions=tuple(suggestions))
    recording = float(run.split.steady_state.phases["record"].max()) / max(run.split.steady_state.steps, 1)
    share = run.share_of_steps(recording)
    if share >= LEAST:
        suggestions = [
            Suggestion(
                action="a larger --log-every, or fewer trackers", gain=run.gain(share / 2), why="half as many records"
            )
        ]
        sentence = f"records and trackers take {step_time(recording)} per step"
        yield RunBottleneck(kind="records", share=share, sentence=sentence, suggestions=tuple(suggestions))


def _twice(run: RunNumbers) -> str:
    every = run.config.save_every
    return f'"{2 * every.number} {every.unit}s"'
