"""What limits a run: every cause that costs at least a tenth of its time, the dearest first, and what to try."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from paceline.analysis.evidence import LEAST, Evidence, Finding, low_median
from paceline.analysis.late import find_late_ranks, find_uneven
from paceline.analysis.phases import TimeSplit
from paceline.analysis.remedies import Remedy, exchange_of, remedies_of
from paceline.core.config import Config
from paceline.core.units import bit_rate, duration, size, step_time
from paceline.records.profile import Profile

FEWEST_STEPS = 5
LEAST_CROWDED = 0.25
"""The same for other programs: ranks that fill the cores share them with their own exchange of gradients."""


def explain(split: TimeSplit, config: Config, profile: Profile | None = None) -> tuple[Finding, ...]:
    """Return what limits a run; nothing where nothing stands out."""
    run = Evidence(split=split, config=config, profile=profile)
    if split.whole.steps < FEWEST_STEPS or run.seconds <= 0:
        return ()
    looks: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
        find_threads, find_link, find_late_ranks, find_data, find_pauses, find_uneven,
    )  # fmt: skip
    found = [finding for look in looks for finding in look(run)]
    # Threads in each other's way disturb whatever else is seen, so they come first.
    return tuple(sorted(found, key=lambda finding: (finding.cause != "threads", -finding.share)))


def find_link(run: Evidence) -> Iterator[Finding]:
    """Gradients that are still on their way when the backward pass has ended."""
    waited = float(run.split.steady.per_step("communication").mean())
    share = run.share_of_steps(waited)
    if run.split.world_size == 1 or share < LEAST:
        return
    exchange = exchange_of(run.split, run.config, run.profile)
    rate = bit_rate(float(exchange.fabric.inter.bandwidth))
    sent, ranks = size(exchange.work.gradient_bytes), run.split.world_size
    if exchange.from_profile:
        needed, hidden = exchange.wire_seconds, max(0.0, exchange.wire_seconds - waited)
        seen = (
            f"{sent} of gradients per step need {step_time(needed)} on this link ({rate}), and {step_time(hidden)} of "
            f"it hides behind the backward pass"
        )
    else:
        seen = (
            f"{sent} of gradients per step keep the ranks waiting {step_time(waited)} of every {step_time(run.step)} "
            f"after the backward pass, as if the link had {rate} at most"
        )
    work = exchange.work
    alone = float(ranks * (work.forward + work.backward + work.other) + work.update)
    verdict = f"{ranks} ranks are slower than one because " if alone < run.step else "the link holds the ranks up: "
    remedies = tuple(replace(found, gain=run.gain_of_steps(found.gain)) for found in remedies_of(exchange, run.config))
    yield Finding(cause="link", share=share, sentence=verdict + seen, remedies=remedies)


def find_data(run: Evidence) -> Iterator[Finding]:
    """Batches that are not there when they are needed, on all ranks alike."""
    steady = run.split.steady
    waited = low_median(steady.per_step("data"))
    share = run.share_of_steps(waited)
    if share < LEAST:
        return
    workers, rest = run.config.workers, max(run.step - waited, 1e-9)
    needed = max(1, workers + 1, int(np.ceil(max(workers, 1) * (waited + (rest if workers else 0.0)) / rest)))
    loading = f"with --workers {workers}" if workers else "in the training process"
    remedy = Remedy(words=f"--workers {needed}", gain=run.gain(share), why="batches are prepared while others are used")
    yield Finding(
        cause="data",
        share=share,
        sentence=f"every rank waits {step_time(waited)} of {step_time(run.step)} for data that it loads {loading}",
        remedies=(remedy,),
    )


def find_threads(run: Evidence) -> Iterator[Finding]:
    """Threads that wait for a core: their own fault where they are more than the cores, or that of other programs."""
    facts, steady = run.split.facts, run.split.steady
    starved = steady.starved / np.maximum(steady.seconds, 1e-9)
    rank = int(starved.argmax())
    host = facts.hosts[rank]
    here = [other for other, name in enumerate(facts.hosts) if name == host]
    threads, cores = sum(facts.threads[other] for other in here), max(facts.cores[other] for other in here)
    share = float(min(starved[other] for other in here))
    if share < (LEAST if threads > cores else LEAST_CROWDED):
        return
    lost = f"{100 * share:.0f}% of the time a rank on {host} has work but no core to do it on"
    if threads > cores:
        fewer = max(1, cores // len(here))
        why = f"{len(here)} × {fewer} threads for {cores} cores; the gain is at least this"
        yield Finding(
            cause="threads",
            share=share,
            sentence=f"{threads} threads share the {cores} cores of {host}: {lost}",
            remedies=(Remedy(words=f"--threads {fewer}", gain=run.gain(share), why=why),),
        )
    else:
        remedy = Remedy(words=f"see what else runs on {host}", gain=run.gain(share), why="the cores are taken")
        yield Finding(cause="cores", share=share, sentence=f"other programs use {host}: {lost}", remedies=(remedy,))


def find_pauses(run: Evidence) -> Iterator[Finding]:
    """What happens between steps: checkpoints, evaluations, records."""
    whole = run.split.whole
    saving = float(whole.phases["save"].max())
    share = saving / run.seconds
    if share >= LEAST:
        words = [Remedy(words=f"--save-every {_twice(run)}", gain=run.gain(share / 2), why="half as many checkpoints")]
        if not run.config.save_async:
            words.insert(
                0, Remedy(words="--save-async", gain=run.gain(share), why="training goes on while one is written")
            )
        sentence = f"checkpoints take {duration(saving)} of {duration(run.seconds)}: writing them is slow"
        yield Finding(cause="checkpoint", share=share, sentence=sentence, remedies=tuple(words))
    evaluating = sum(moment.phases["evaluate"] for moment in run.split.curve)
    share = evaluating / run.seconds
    if share >= LEAST:
        words = [Remedy(words="a larger --eval-every", gain=run.gain(share / 2), why="half as many evaluations")]
        sentence = f"evaluations between steps take {duration(evaluating)} of {duration(run.seconds)}"
        yield Finding(cause="evaluation", share=share, sentence=sentence, remedies=tuple(words))
    recording = float(run.split.steady.phases["record"].max()) / max(run.split.steady.steps, 1)
    share = run.share_of_steps(recording)
    if share >= LEAST:
        words = [
            Remedy(
                words="a larger --log-every, or fewer trackers", gain=run.gain(share / 2), why="half as many records"
            )
        ]
        sentence = f"records and trackers take {step_time(recording)} a step"
        yield Finding(cause="records", share=share, sentence=sentence, remedies=tuple(words))


def _twice(run: Evidence) -> str:
    every = run.config.save_every
    return f'"{2 * every.number} {every.unit}s"'
