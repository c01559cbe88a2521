"""The object of a loop of the user: set up parts, iterate over batches, compute gradients, update, evaluate, log."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeVar

from torch import Tensor
from torch.optim import Optimizer

from paceline.core.config import Config
from paceline.core.errors import TaskError
from paceline.core.metrics import Scores
from paceline.core.stopping import StopRequest
from paceline.data.collate import Collate
from paceline.data.sources.user import SampleSequence, own_sequence
from paceline.data.split import Split
from paceline.data.tree import Tree
from paceline.engine.batches import BatchSlice, MicroBatch, batch_slices
from paceline.engine.clock import DATA, EVALUATE, UPDATE_PART, Clock
from paceline.engine.model_setup import autocast
from paceline.engine.own_batch import Batch
from paceline.engine.own_evaluate import score_blocks
from paceline.engine.own_job import OwnJob, OwnMeter, make_own_job
from paceline.engine.own_losses import checked_losses, objective
from paceline.engine.own_parts import OwnParts
from paceline.engine.own_pass import OwnPass, left_early, name_of, never_applied
from paceline.engine.own_steps import OwnSteps
from paceline.engine.progress import Progress
from paceline.parallel.team import Team
from paceline.records.entries import RunResult
from paceline.tasks.task import Metric

P = TypeVar("P")
Open = Callable[[OwnJob, Progress, ExitStack, OwnMeter], OwnSteps]
"""Opens the run folder and its records, once the job is known."""


class Run:
    """A run with a loop of your own; see docs/own-loop.md."""

    def __init__(  # noqa: PLR0913 - what start_run has prepared
        self,
        config: Config,
        team: Team,
        stop: StopRequest,
        *,
        clock: Clock,
        saved: Mapping[str, Any] | None,
        code: dict[str, str],
        open_steps: Open,
    ) -> None:
        self.config = config
        self.device = team.device
        self.world_size = team.world.size
        self.is_lead = team.is_lead
        self.team, self.clock, self.meter = team, clock, OwnMeter()
        self.parts = OwnParts(config, team, saved)
        self.current: MicroBatch | None = None
        """The micro-batch that is being computed; None outside of a pass."""
        self.num_draws = 0
        self.result: RunResult | None = None
        self._stop, self._saved, self._code, self._open = stop, saved, code, open_steps
        self._stack = ExitStack()
        self._job: OwnJob | None = None
        self._steps: OwnSteps | None = None
        self._batch: Batch | None = None
        self._pass: OwnPass | None = None
        self._totals_seen: set[str] = set()

    @property
    def stopped(self) -> bool:
        """Whether a signal has ended the run early, with a checkpoint."""
        return self._steps is not None and self._steps.stopped

    @property
    def _step(self) -> int:
        assert self._batch is not None
        return self._batch.step

    @property
    def steps_per_epoch(self) -> int:
        """Steps that cover every sample once."""
        return self._opened().plan.steps_per_epoch

    def setup(self, name: str, part: P) -> P:
        """Add a module, an optimizer or anything with a state_dict: every checkpoint holds it, a resume restores it.

        Use the object that it returns. Collective: every rank must call it, in the same order.
        """
        if self._job is not None:
            raise TaskError(f"run.setup({name}) after run.batches", hint="set up all parts before the first batch")
        return self.parts.add(name, part)

    def batches(self, data: SampleSequence, *, collate: Collate | None = None) -> Iterator[Batch]:
        """Yield the steps that are left, from the middle of an epoch on after a resume. Collective.

        Asking for the next batch ends the step: records, checkpoints and stop signals happen there.
        """
        if self._job is not None:
            raise TaskError("run.batches was called twice", hint="one loop over run.batches covers all epochs")
        self.parts.check_complete()
        split = own_sequence(data, seed=self.config.seed, collate=collate)
        self.team.agree({"the number of samples": len(split)})
        self._job = make_own_job(self.parts, self.team, self._saved, code=self._code, num_samples=len(split))
        progress = Progress() if self._saved is None else Progress.from_dict(self._saved["progress"])
        self._steps = self._open(self._job, progress, self._stack, self.meter)
        return self._iterate(self._job, self._steps, split)

    def _iterate(self, job: OwnJob, steps: OwnSteps, split: Split) -> Iterator[Batch]:
        def slices(size: int) -> list[BatchSlice]:
            fill = "even" if self.config.batch_norm == "sync" else "none"
            return batch_slices(job.plan, size, self.team.world.rank, weight=1, fill=fill)

        while not steps.done:
            for step, micro_batches in steps.batches(split, slices):
                self.clock.end_phase(DATA)
                self._batch, self._totals_seen = Batch(self, step, job.plan.batch_size(step), micro_batches), set()
                yield self._batch
                self._end_step()
                if steps.done:
                    break

    def _end_step(self) -> None:
        assert self._batch is not None
        assert self._job is not None
        assert self._steps is not None
        waiting = self._job.passes.waiting
        if self._pass is not None:
            raise left_early(self._pass, self._step)
        if waiting:
            raise never_applied(waiting[0], self._step)
        self.meter.keep()
        batch, self._batch = self._batch, None
        self._steps.end(batch, self._stop)

    def enter_pass(self, batch: Batch, optimizer: Optimizer | None) -> OwnPass:
        """Open a pass; only `Batch` calls it."""
        if batch is not self._batch:
            raise TaskError("micro_batches of a batch whose step has ended", hint="use the batch of the current step")
        if self._pass is not None:
            raise left_early(self._pass, self._step)
        self.meter.keep()
        self._pass = self._opened().passes.get(optimizer)
        if self._pass.waiting:
            raise never_applied(sorted(self._pass.waiting)[0], batch.step)
        return self._pass

    def leave_pass(self, _batch: Batch) -> None:
        """Close the pass; only `Batch` calls it."""
        self._pass = self.current = None

    def backward(
        self, loss: Tensor | Mapping[str, tuple[Tensor, int | Tensor]], total: float | Tensor | None = None
    ) -> None:
        """Add the gradient of a loss sum, divided by its total over the global batch.

        Several losses: {"name": (sum, total), …}.
        """
        if self._pass is None or self.current is None or self._batch is None:
            raise TaskError(
                "run.backward outside of batch.micro_batches", hint="loop over the batch, also with one micro-batch"
            )
        named = checked_losses(loss, total)
        self._pass.backward(objective(named, counts=bool(self.current.weight)), self.clock)
        self._count(named)

    def _count(self, losses: Mapping[str, tuple[Tensor, int]]) -> None:
        """Record losses; their total over the global batch counts once per step, on the lead."""
        assert self.current is not None
        if not self.current.weight:
            return
        for name, (value, total) in losses.items():
            counts = self.is_lead and name not in self._totals_seen
            self.meter.add(name, value, total if counts else 0)
            self._totals_seen.add(name)

    def step(self, optimizer: Optimizer, *, clip: float | None = None) -> None:
        """Update with an optimizer, and clear its gradients; `clip` limits their norm. Collective."""
        name = name_of(optimizer, self.parts)
        if self._pass is not None:
            raise (
                left_early(self._pass, self._step)
                if self.current is None
                else TaskError(f"run.step({name}) inside of a loop over micro-batches", hint="call it after the loop")
            )
        own = None if self._job is None else self._job.passes.holding(name)
        if own is None:
            raise TaskError(f"run.step({name}) without a gradient", hint=f"one run.step({name}) after its loop")
        own.update(name, clip)
        if self._steps is not None:
            self._steps.lr = float(optimizer.param_groups[0]["lr"])
        self.clock.end_phase(UPDATE_PART)

    def evaluate(
        self,
        data: SampleSequence,
        score: Callable[[Tree], Mapping[str, Any]],
        *,
        metrics: Mapping[str, Metric] | None = None,
        best: str | None = None,
        collate: Collate | None = None,
    ) -> Scores:
        """Score every sample of the data once, in fixed blocks, without gradients. Collective.

        `score(batch)` returns sums by name: a pair (sum, count), or the sums of one of `metrics`. Where the score
        called `best` has improved, the step ends with a checkpoint that is kept as the best.
        """
        if self._pass is not None or self._steps is None:
            where = "before run.batches" if self._steps is None else "inside of a pass"
            raise TaskError(f"run.evaluate {where}", hint="call it in a step, after run.step")
        self.clock.end_phase(UPDATE_PART)
        split = own_sequence(data, seed=self.config.seed, collate=collate)
        scores = score_blocks(self, split, score, metrics or {})
        self.clock.end_phase(EVALUATE)
        self._steps.take_scores(scores, self._batch, best, metrics or {}, split_samples=len(split))
        return scores

    def log(self, **sums: tuple[Tensor | float, Tensor | int]) -> None:
        """Record numbers as (sum, count) of this rank: they are added over ranks once per interval."""
        if self.current is not None and not self.current.weight:
            return
        for name, pair in sums.items():
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise TaskError(f"run.log({name}=…) is not a pair (sum, count)", hint=f"log {name}=(value, 1)")
            self._opened().task.add_ratio(name)
            self.meter.add(name, *pair)

    def save(self, *, best: bool = False) -> None:
        """Save a checkpoint at the end of this step. Collective: every rank must call it."""
        self._opened()
        assert self._steps is not None
        self._steps.save_due = True
        self._steps.is_best |= best

    def randn(self, *shape: int) -> Tensor:
        """Return normal random numbers, a row per sample of the micro-batch: the same at every world size."""
        if self._batch is None or self.current is None:
            raise TaskError("run.randn outside of batch.micro_batches", hint="outside of a pass, use torch.randn")
        return self._batch.draw(*shape)

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum of a tensor over all ranks. Collective: every rank must call it."""
        if self._pass is not None:
            raise TaskError(
                "run.sum inside of a loop over micro-batches: ranks have different numbers of them",
                hint="add up in the loop, and call it afterwards",
            )
        total = value.detach().cpu().clone()
        self.team.add(total)
        return total.to(value.device)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context for forward passes in the precision of --precision."""
        return autocast(self.config, self.device)

    def lr(self, step: int) -> float:
        """Return the learning rate of the schedule in the settings."""
        return self._opened().lr_plan.at(step)

    def average_buffers(self) -> None:
        """Average the buffers of all modules over the ranks. Collective: every rank must call it."""
        self._opened().average_buffers(self.team)

    def _opened(self) -> OwnJob:
        if self._job is None:
            raise TaskError("this needs the batches of the run", hint="call run.batches first")
        return self._job

    def close(self) -> None:
        """End the run and report its result. Collective: every rank must call it."""
        if self._steps is None:
            raise TaskError("the loop never called run.batches", hint="for batch in run.batches(data): …")
        if self._batch is None and self._steps.progress.step < self._opened().plan.total_steps and not self.stopped:
            raise TaskError("the loop asked for no batch of run.batches", hint="for batch in run.batches(data): …")
        if self._batch is not None:  # the user's loop was left before the last step
            self._steps.progress.stopped_early = True
            self._end_step()
        self.result = self._steps.finish(self._stop)

    @contextmanager
    def opened(self) -> Iterator["Run"]:
        """End the run when the block succeeds; in any case close its records."""
        with self._stack:
            yield self
            self.close()
