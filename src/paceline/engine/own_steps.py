"""The steps of a loop of the user in its run folder: what happens after each of them, and at the end."""

from collections.abc import Mapping
from typing import Any, Literal

from paceline.core.errors import DivergedError, TaskError, suggestion
from paceline.core.metrics import Scores
from paceline.core.stopping import StopRequest
from paceline.engine.clock import UPDATE
from paceline.engine.own_batch import Batch
from paceline.engine.own_job import OwnJob, OwnMeter, check_names
from paceline.engine.progress import Progress
from paceline.engine.recorded_run import RecordedRun
from paceline.engine.run_steps import RunSteps
from paceline.records.entries import EvalRecord, RunResult, State
from paceline.tasks.task import Metric


class OwnSteps(RunSteps):
    """The steps of a loop of the user, with the scores that it takes."""

    def __init__(self, job: OwnJob, progress: Progress, run: RecordedRun[OwnJob], meter: OwnMeter) -> None:
        super().__init__(job, progress, run.team, run.recorder, clock=run.clock)
        self.job, self.meter = job, meter
        self.lr = 0.0
        self.save_due = self.is_best = False
        self._run = run
        self._has_samples = False
        self._valid: Scores | None = None

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
        run = self._run
        run.clock.end_phase(UPDATE)
        self.meter.add_samples(batch.own_samples)
        self._has_samples |= batch.has_samples
        is_last = self.progress.stopped_early
        try:
            self.record(batch.step, self.lr, is_last=is_last)
        except DivergedError as problem:
            raise run.located(problem) from problem
        if self.ends_epoch:
            run.recorder.end_epoch(self._valid, is_best=self.is_best, unreadable=None)
            self._valid = None
        self.conclude(stop, run.save, run.check_replicas, is_best=self.is_best, save_now=self.save_due or is_last)
        self.save_due = self.is_best = False

    def _record(self, lr: float) -> None:
        """Record the interval that ends here, once all ranks have the same names. Collective."""
        check_names(self.meter.names if self._has_samples else None, self._run.team, self.progress.step)
        super()._record(lr)
        self._has_samples = False
        self.meter.names.clear()

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
