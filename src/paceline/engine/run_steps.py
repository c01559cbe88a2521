"""The steps of a run, whoever wrote its loop: their batches, and what happens between two of them."""

from collections.abc import Callable, Iterator
from typing import Protocol

from paceline.core.stopping import StopRequest
from paceline.data.split import Split
from paceline.engine.batches import BatchSlice, MicroBatch, load_steps
from paceline.engine.clock import RECORD, SAVE, Clock
from paceline.engine.progress import Progress
from paceline.engine.recorded_job import RecordedJob
from paceline.engine.recorder import Recorder
from paceline.parallel.team import Team


class Save(Protocol):
    """Saves a checkpoint of the current progress. Collective: every rank must call it."""

    def __call__(self, *, is_best: bool = False) -> None:
        """Save; the best checkpoint so far is kept when older ones are removed."""
        ...


class RunSteps:
    """Yields the batches that are left; between two of them records, saves, checks and stops, each when it is due."""

    def __init__(self, job: RecordedJob, progress: Progress, team: Team, recorder: Recorder, *, clock: Clock) -> None:
        self.progress = progress
        self.stopped = False
        """Whether a signal has ended the run early, with a checkpoint."""
        self._plan, self._config, self._device = job.plan, job.config, job.device
        self._team, self._recorder, self._clock = team, recorder, clock
        self._saved_step: int | None = None
        """The step of the last checkpoint of this start."""

    @property
    def steps_per_epoch(self) -> int:
        """Steps that cover every sample once."""
        return self._plan.steps_per_epoch

    @property
    def ends_epoch(self) -> bool:
        """Whether the last step ended an epoch."""
        return self.progress.step % self._plan.steps_per_epoch == 0

    @property
    def is_last(self) -> bool:
        """Whether the last step was the last of the plan."""
        return self.progress.step == self._plan.total_steps

    @property
    def done(self) -> bool:
        """Whether no further batch comes."""
        return self.stopped or self.progress.stopped_early or self.progress.step >= self._plan.total_steps

    def batches(
        self, split: Split, slices: Callable[[int], list[BatchSlice]], *, end: int | None = None
    ) -> Iterator[tuple[int, list[MicroBatch]]]:
        """Yield the steps left in this epoch, or before the step `end`, with this rank's micro-batches of each.

        `slices` returns this rank's slices of a global batch of a size.
        """
        plan, first = self._plan, self.progress.step
        last = min((first // plan.steps_per_epoch + 1) * plan.steps_per_epoch, plan.total_steps)
        last = last if end is None else min(last, end)
        return load_steps(
            split,
            plan,
            range(first, last),
            slices=slices(plan.global_batch),
            last_slices=slices(plan.batch_size(last - 1)),
            config=self._config,
            device=self._device,
        )

    def record(self, step: int, lr: float, *, is_last: bool = False) -> None:
        """Record a step that has been computed, or show it. Collective: every rank must call it."""
        self.progress.step = step + 1
        if self.progress.step % self._config.log_every == 0 or self.ends_epoch or self.is_last or is_last:
            self._record(lr)
        else:
            self._recorder.pulse()
        self._clock.end_phase(RECORD)

    def _record(self, lr: float) -> None:
        """Record the interval that ends with this step. Collective: every rank must call it."""
        self._recorder.step(lr)

    def conclude(
        self, stop: StopRequest, save: Save, check: Callable[[], None], *, is_best: bool = False, save_now: bool = False
    ) -> None:
        """Save, compare the replicas and stop, each when it is due. Collective: every rank must call it."""
        step, config = self.progress.step, self._config
        due = config.save_every.due(step=step, steps_per_epoch=self._plan.steps_per_epoch)
        if is_best or save_now or self.is_last or due:
            self._save(save, is_best=is_best)
        if config.check_replicas and step % config.check_replicas == 0:
            check()
        self.stopped = self._team.poll(stop.asked) and not self.is_last
        self._clock.end_phase(RECORD)
        if self.stopped:
            self._save(save)

    def _save(self, save: Save, *, is_best: bool = False) -> None:
        """Save, with the metrics so far, unless this step is saved already. Collective: every rank must call it."""
        if self._saved_step == self.progress.step:
            return
        self._saved_step = self.progress.step
        self._recorder.gather()
        self._clock.end_phase(RECORD)
        save(is_best=is_best)
        self._clock.end_phase(SAVE)
