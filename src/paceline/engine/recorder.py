"""Turns events of the loop into records for the trackers. Other ranks than the lead have collective trackers only."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from paceline.core.batch_plan import BatchPlan
from paceline.core.metrics import Scores, Sums
from paceline.core.units import plural
from paceline.engine.clock import RECORD, UPDATE, Clock
from paceline.engine.meter import Meter, diverged
from paceline.engine.progress import Progress
from paceline.engine.scoring import Scoring
from paceline.engine.timings import Timings
from paceline.engine.utilisation import UtilisationSampler
from paceline.parallel.team import Team
from paceline.records.entries import Entry, EpochRecord, Note, Pulse, RunResult, StepRecord
from paceline.trackers.base import Guarded, RunInfo, Tracker

SECONDS_BETWEEN_PULSES = 0.5
MOST_NAMES = 5


class SumsSource(Protocol):
    """Collects the sums of the training steps."""

    def take(self) -> Sums:
        """Return the sums since the last call."""
        ...


class Recorder:
    """Records the run. It costs two comparisons per step; the rest happens once per interval."""

    def __init__(self, plan: BatchPlan, progress: Progress, team: Team, *, scoring: Scoring, clock: Clock) -> None:
        self.meter = Meter(scoring, eager=team.device.type == "cpu" and team.world.size == 1)
        self.own_sums: SumsSource | None = None
        """Where the sums of a loop of the user come from, in place of the meter."""
        self.result: RunResult | None = None
        self._plan = plan
        self._progress = progress
        self._clock = clock
        self._timings = Timings(clock, team.world.size if team.is_lead else 1)
        self._utilisation = UtilisationSampler(team.device)
        self._team = team
        self._scoring = scoring
        self._own = Sums()
        self._named: set[str] = set()
        self._trackers: list[Guarded] = []
        self._interval = _Mark(clock, plan, progress.step)
        self._epoch = _Mark(clock, plan, progress.step)
        self._next_pulse = clock.now

    @contextmanager
    def attached(self, trackers: Sequence[Tracker], run: RunInfo) -> Iterator[None]:
        """Send records to these trackers while the block runs; the console, which is first, closes last."""
        for tracker in trackers:
            guarded = Guarded(tracker, self.warn)
            self._trackers.append(guarded)
            guarded.open(run)
        try:
            yield
        finally:
            for guarded in reversed(self._trackers):
                guarded.close(self.result)

    def say(self, text: str) -> None:
        """Record a message for the user."""
        self.put(Note(text=text))

    def warn(self, text: str) -> None:
        """Record a warning for the user."""
        self.put(Note(text=text, level="warning"))

    def put(self, entry: Entry) -> None:
        """Send a record to every tracker."""
        for tracker in self._trackers:
            tracker.record(entry)

    def pulse(self) -> None:
        """Update the progress display, a few times per second."""
        if self._clock.now < self._next_pulse or not self._trackers:
            return
        self._next_pulse = self._clock.now + SECONDS_BETWEEN_PULSES
        self._own += self._taken()
        score = self._scores(self._progress.interval_score + self._own)
        speed = self._interval.samples_per_s(self._progress.step)
        self.put(Pulse(step=self._progress.step, epoch=self.epoch, score=score, samples_per_s=speed))

    def gather(self) -> None:
        """Sum the scores and times of all ranks since the last call. Collective: every rank must call it.

        All ranks see a non-finite loss of any rank here, so that they stop together.
        """
        own_times = self._timings.take()  # waits for a device in a way that signals and time limits can end
        own, self._own = self._own + self._taken(), Sums()
        times = self._team.gather_on_lead(own_times)
        if times is not None:
            self._timings.add(times)
        total = self._team.total(own, lambda every: sum(every, start=Sums()))
        for name in total.parts:
            if name not in self._scoring.task.metrics and not math.isfinite(total.nonfinite(name)):
                raise diverged(total.nonfinite(name), name)
        self._progress.interval_score += total
        self._progress.epoch_score += total

    def step(self, lr: float) -> None:
        """Record the interval that ends with this step. Collective: every rank must call it."""
        self.gather()
        times = self._timings.record(self._progress.step)
        record = StepRecord(
            step=self._progress.step,
            epoch=self.epoch,
            score=self._scores(self._progress.interval_score),
            lr=lr,
            samples_per_s=self._interval.samples_per_s(self._progress.step),
            seconds=self._interval.seconds(),
            phases={phase: by_rank[0] for phase, by_rank in times.phases.items()},
            utilisation=self._utilisation.sample(),
        )
        self.put(record)
        self.put(times)
        self._progress.interval_score = Sums()
        self._interval = _Mark(self._clock, self._plan, self._progress.step)

    def end(self) -> None:
        """Record the phases after the last step. Collective: every rank must call it."""
        self._clock.end_phase(RECORD)
        times = self._team.gather_on_lead(self._timings.take())
        if times is not None:
            self._timings.add(times)
        self.put(self._timings.record(self._progress.step))

    def end_epoch(self, valid: Scores | None, *, is_best: bool, unreadable: Sequence[str] | None) -> None:
        """Record the epoch that ends with this step, and name its unreadable images."""
        self._name(unreadable or ())
        record = EpochRecord(
            step=self._progress.step,
            epoch=self.epoch,
            train=self._scores(self._progress.epoch_score),
            valid=valid,
            is_best=is_best,
            samples_per_s=self._epoch.samples_per_s(self._progress.step),
            seconds=self._epoch.seconds(),
            num_unreadable=None if unreadable is None else len(unreadable),
        )
        self.put(record)
        self._progress.epoch_score = Sums()
        self._epoch = _Mark(self._clock, self._plan, self._progress.step)

    def _taken(self) -> Sums:
        return (self.own_sums or self.meter).take()

    def _scores(self, sums: Sums) -> Scores:
        return self._scoring.scores(sums, step=max(0, self._progress.step - 1))

    def _name(self, unreadable: Sequence[str]) -> None:
        """Name unreadable images that have not been reported yet."""
        new = [name for name in unreadable if name not in self._named]
        self._named.update(new)
        if new:
            others = f" and {len(new) - MOST_NAMES} more" if len(new) > MOST_NAMES else ""
            shown = ", ".join(new[:MOST_NAMES])
            images = plural(len(new), "image")
            self.warn(f"{images} could not be decoded (using others of the same class instead): {shown}{others}")

    @property
    def epoch(self) -> int:
        """The epoch that the last step belonged to, counted from 1."""
        return self._plan.epoch_of(self._progress.step)


class _Mark:
    """The start of a measurement."""

    def __init__(self, clock: Clock, plan: BatchPlan, step: int) -> None:
        self._clock = clock
        self._plan = plan
        self._step = step
        self._seconds = clock.seconds
        self._totals = clock.totals()

    def seconds(self) -> float:
        return self._clock.seconds - self._seconds

    def samples_per_s(self, step: int) -> float:
        """Return the speed of training since the mark; evaluating and saving do not count as training."""
        spent = sum(self._clock.totals()[: UPDATE + 1]) - sum(self._totals[: UPDATE + 1])
        samples = self._plan.samples_done(step) - self._plan.samples_done(self._step)
        return samples / spent if spent else 0.0
