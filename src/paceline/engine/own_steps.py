"""The steps of a loop of the user in its run folder: what happens after each of them, and at the end."""

from collections.abc import Mapping
from typing import Any, Literal

from paceline.core.errors import DivergedError, TaskError, suggestion
from paceline.core.metrics import Scores
from paceline.core.stopping import StopRequest
from paceline.engine.clock import RECORD, SAVE, UPDATE
from paceline.engine.own_batch import Batch
from paceline.engine.own_job import OwnJob, OwnMeter, check_names
from paceline.engine.progress import Progress
from paceline.engine.recorded_run import RecordedRun
from paceline.records.entries import EvalRecord, RunResult, State
from paceline.tasks.task import Metric


class OwnSteps:
    """Records, saves and stops between two batches."""

    def __init__(self, job: OwnJob, progress: Progress, run: RecordedRun[OwnJob], meter: OwnMeter) -> None:
        self.job, self.progress, self.meter = job, progress, meter
        self.lr = 0.0
        self.stopped = False
        self.save_due = self.is_best = False
        self._run = run
        self._has_samples = False
        self._valid: Scores | None = None
        self._saved_step: int | None = None

    def take_scores(
        self,
        scores: Scores,
        batch: Batch | None,
        best: str | None,
        metrics: Mapping[str, Metric],
        *,
        split_samples: int,
    ) -> None:
        """Record an evaluation, and judge whether it is the best so far."""
        is_best, step = False, self.progress.step if batch is None else batch.step + 1
        if best is not None and best not in scores.by_name:
            raise TaskError(f"there is no score {best}", hint=suggestion(best, scores.by_name))
        if best is not None:
            better: Literal["higher", "lower"] = "lower" if best == "loss" else "higher"
            is_best = self.progress.judge(scores, best, metrics[best].better if best in metrics else better)
            self.progress.best_step = step if is_best else self.progress.best_step
            self.is_best |= is_best
        if batch is not None and batch.ends_epoch:
            self._valid = scores
            return
        record = EvalRecord(
            step=step,
            epoch=self.job.plan.epoch_of(step),
            split="valid",
            score=scores,
            is_best=is_best,
            seconds=0.0,
            split_samples=split_samples,
        )
        self._run.recorder.put(record)

    def end(self, batch: Batch, stop: StopRequest) -> None:
        """End a step: record, save and stop, each when it is due. Collective: every rank must call it."""
        run, plan, config = self._run, self.job.plan, self.job.config
        run.clock.end_phase(UPDATE)
        self.progress.step = step = batch.step + 1
        self.meter.add_samples(batch.own_samples)
        self._has_samples |= batch.has_samples
        is_last = step == plan.total_steps or self.progress.stopped_early
        try:
            self._record(step, ends_epoch=batch.ends_epoch, is_last=is_last)
        except DivergedError as problem:
            raise run.located(problem) from problem
        run.clock.end_phase(RECORD)
        due = config.save_every.due(step=step, steps_per_epoch=plan.steps_per_epoch)
        if self.save_due or self.is_best or is_last or due:
            self._save()
        if config.check_replicas and step % config.check_replicas == 0:
            run.check_replicas()
        self.stopped = run.team.poll(stop.asked) and not is_last
        run.clock.end_phase(RECORD)
        if self.stopped:
            self._save()

    def _record(self, step: int, *, ends_epoch: bool, is_last: bool) -> None:
        recorder = self._run.recorder
        if step % self.job.config.log_every == 0 or ends_epoch or is_last:
            check_names(self.meter.names if self._has_samples else None, self._run.team, step)
            recorder.step(self.lr)
            self._has_samples = False
            self.meter.names.clear()
        else:
            recorder.pulse()
        if ends_epoch:
            recorder.end_epoch(self._valid, is_best=self.is_best, unreadable=None)
            self._valid = None

    def _save(self) -> None:
        if self._saved_step != self.progress.step:
            self._saved_step = self.progress.step
            self._run.recorder.gather()
            self._run.clock.end_phase(RECORD)
            self._run.save(is_best=self.is_best)
            self._run.clock.end_phase(SAVE)
        self.save_due = self.is_best = False

    def finish(self, stop: StopRequest) -> RunResult:
        """End the run, and return its result. Collective: every rank must call it."""
        run, state = self._run, State.STOPPED if self.stopped else State.FINISHED
        if run.background is not None:
            run.background.close()
        run.recorder.end()
        result = run.result(state, None, stop)
        run.recorder.result = result
        run.heartbeat.note(state)
        self._report(result)
        return result

    def _report(self, result: RunResult) -> None:
        run, path = self._run, self._run.folder.path
        step, steps = self.progress.step, self.job.plan.total_steps
        if result.state is State.STOPPED:
            run.recorder.say(f"stopped after step {step} of {steps}, saved; to resume: {self._resume(str(path))}")
            return
        best = f": best was step {self.progress.best_step}" if self.progress.best is not None else ""
        run.recorder.say(f"finished after step {step}{best}; {path}")

    def _resume(self, path: str) -> str:
        loop: Any = self.job.config.loop
        return f"paceline train --resume {path}" if ":" in loop else f'start_run(resume="{path}") in {loop}'
