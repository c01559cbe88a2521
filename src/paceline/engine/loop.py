"""The training loop.

    for each epoch:
        for each batch:
            step            forward, backward, update: the batch in one or more micro-batches
            record          once per interval
            evaluate, save  when due
            stop            on a signal, or when patience is out

Every decision is shared by all ranks, and a lone rank is a team of one: there are no special cases for it.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from torch import Tensor

from paceline.core.metrics import Scores
from paceline.core.plugin import is_plugin
from paceline.core.stopping import StopRequest
from paceline.data.tree import Tree, align_leaves, moved
from paceline.engine.balance import Balance
from paceline.engine.batches import BatchSlice, MicroBatch, batch_slices
from paceline.engine.clock import COPY, DATA, EVALUATE, GRAD_SYNC, UPDATE, Clock
from paceline.engine.compute_check import ComputeCheck
from paceline.engine.evaluate import evaluate, scored_ids
from paceline.engine.job import Job
from paceline.engine.objective import Objective, named_losses
from paceline.engine.passes import NOTHING, GradientPass
from paceline.engine.progress import Progress
from paceline.engine.recorder import Recorder
from paceline.engine.run_steps import RunSteps, Save
from paceline.models.zoo import list_models
from paceline.parallel.buffers import StepContext
from paceline.parallel.modes import without_grad_sync
from paceline.parallel.team import Team
from paceline.records.entries import EvalRecord, State


class Computed(NamedTuple):
    """What the forward pass of a micro-batch returned, for the metrics."""

    losses: dict[str, Tensor]
    outputs: Tree
    targets: Tree


class JobPass(GradientPass):
    """The gradient of the model of a job, which DDP, FSDP or a reducer sums over ranks."""

    def __init__(self, job: Job, team: Team) -> None:
        super().__init__("the model", job.model, job.config, job.scaler)
        self._job, self._team = job, team
        self.reducer = job.reducer
        self.torch_only = job.config.model in list_models()  # other generators need not be seeded
        self.seeds_outside = is_plugin(job.config.optimizer)  # ours draw no random numbers

    def context(self, num_micro_batches: int) -> AbstractContextManager[StepContext]:
        """Return the context of a step."""
        return self._job.step_context(self._team, num_micro_batches)

    def syncing(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Return the context of a micro-batch."""
        return NOTHING if is_last else without_grad_sync(self._job.forward)


class Training:
    """One run of the loop."""

    def __init__(self, job: Job, progress: Progress, team: Team, recorder: Recorder, *, clock: Clock) -> None:
        self.job = job
        self.progress = progress
        self.team = team
        self.recorder = recorder
        self.clock = clock
        self.plan = job.plan
        self.balance = Balance(job.plan, team, clock, recorder) if job.config.balance else None
        self.objective = Objective(job.task, job.splits, team, gradient_weight=job.gradient_weight)
        self.steps = RunSteps(job, progress, team, recorder, clock=clock)
        self.gradient_pass = JobPass(job, team)
        self.compute_check = ComputeCheck(job, team)
        self.averages = job.averages
        self.trained = {name: value for name, value in job.model.named_parameters() if value.requires_grad}

    def run(self, stop: StopRequest, *, save: Save, check: Callable[[], None]) -> State:
        """Train until the plan is done, patience is out, or a signal asks to stop. Collective."""
        steps = self.steps
        steps.stopped = False
        self.job.model.train()
        while not steps.done:
            for step, micro_batches in self.batches_of_epoch():
                lr = self.train_step(step, micro_batches)
                is_best = self.after_step(step, lr)
                self.check_compute(step)
                steps.conclude(stop, save, check, is_best=is_best)
                if steps.done:
                    break
        return State.STOPPED if steps.stopped else State.FINISHED

    def batches_of_epoch(self) -> Iterator[tuple[int, list[MicroBatch]]]:
        """Yield the steps left in this epoch, or until shards are balanced, with this rank's micro-batches of each.

        Collective: every rank must call it.
        """
        end = None
        if self.balance is not None:
            end = self.balance.decide(self.progress.step)
            self.plan = self.balance.plan
        return self.steps.batches(self.job.splits.train, self.slices, end=end)

    def check_compute(self, step: int) -> None:
        """Compare gradients that two ranks compute from the same samples, if it is due after this step. Collective."""
        every = self.job.config.check_compute
        if every and (step + 1) % every == 0:
            size = self.job.plan.batch_size(step)
            self.compute_check.check(step, [self.slices(size, rank) for rank in range(self.team.world.size)])

    def slices(self, batch_size: int, rank: int | None = None) -> list[BatchSlice]:
        """Return the slices of a global batch of this size that a rank computes, this one if none is given."""
        job, rank = self.job, self.team.world.rank if rank is None else rank
        if job.reducer is not None and not job.reducer.is_sharded:
            fill = "none"  # gradients need not come from every rank
        else:
            fill = "even" if job.reducer is not None or job.config.batch_norm == "sync" else "one"
        return batch_slices(self.plan, batch_size, rank, weight=job.gradient_weight, fill=fill)

    def train_step(self, step: int, micro_batches: list[MicroBatch]) -> float:
        """Compute one step and return its learning rate. Collective: every rank must call it."""
        job, clock = self.job, self.clock
        clock.end_phase(DATA)
        lr = job.lr_plan.at(step)
        for group in job.optimizer.param_groups:
            group["lr"] = lr * group["lr_factor"]
        self.gradients(step, micro_batches)
        self.gradient_pass.apply(job.optimizer, self.trained, job.config.clip)
        job.scaler.update()
        for average in self.averages:
            average.update(step)
        clock.end_phase(UPDATE)
        return lr

    def gradients(self, step: int, micro_batches: list[MicroBatch]) -> None:
        """Compute the gradient of the global batch. Collective: every rank must call it."""
        counted = [(part.batch, part.num_samples if part.weight else 0) for part in micro_batches]
        self.objective.begin(step, counted, batch_size=self.job.plan.batch_size(step))
        computed: dict[int, Computed] = {}
        for number, micro_batch in self.gradient_pass.micro_batches(step, micro_batches):
            computed[number] = self.backward(micro_batch, number)
        for number, output in computed.items():
            if micro_batches[number].weight:
                counts, num_samples = self.objective.counts(number, output.losses), micro_batches[number].num_samples
                self.recorder.meter.add(*output, counts=counts, num_samples=num_samples)
        self.clock.end_phase(GRAD_SYNC)

    def backward(self, micro_batch: MicroBatch, number: int) -> Computed:
        """Add the gradient of a micro-batch, the number-th of this rank, and return its losses and outputs."""
        job = self.job
        batch = moved(align_leaves(micro_batch.batch), job.device, job.memory_format)
        self.clock.end_phase(COPY)
        with job.autocast():
            outputs, targets = job.task.forward(job.forward, batch), job.task.targets(batch)
            losses = named_losses(job.task.loss(outputs, targets))
        self.gradient_pass.backward(self.objective.weighted(losses, number), self.clock)
        return Computed({name: loss.detach() for name, loss in losses.items()}, outputs, targets)

    def after_step(self, step: int, lr: float) -> bool:
        """Record and evaluate, each when it is due, and tell whether the model is the best so far."""
        steps = self.steps
        steps.record(step, lr)
        if steps.is_last or self.job.config.eval_every.due(step=step + 1, steps_per_epoch=steps.steps_per_epoch):
            return self.evaluate(ends_epoch=steps.ends_epoch)
        if steps.ends_epoch:
            self.end_epoch(None, is_best=False)
        return False

    def end_epoch(self, valid: Scores | None, *, is_best: bool) -> None:
        """Record an epoch. Collective: every rank must call it."""
        self.recorder.end_epoch(valid, is_best=is_best, unreadable=self.job.unreadable(self.team))

    def evaluate(self, *, ends_epoch: bool) -> bool:
        """Evaluate, record it, and tell whether it is the best so far. Collective: every rank must call it."""
        self.job.average_buffers(self.team)
        start = self.clock.seconds
        split = self.job.splits.valid
        valid: Scores = evaluate(self.job, self.team, split, scored_ids(self.job, split))
        self.clock.end_phase(EVALUATE)
        best = self.job.task.best
        is_best = self.progress.judge(valid, best, self.job.scoring.better(best))
        if ends_epoch:
            self.end_epoch(valid, is_best=is_best)
        else:
            record = EvalRecord(
                step=self.progress.step,
                epoch=self.recorder.epoch,
                split="valid",
                score=valid,
                is_best=is_best,
                seconds=self.clock.seconds - start,
                split_samples=len(split),
            )
            self.recorder.put(record)
        patience = self.job.config.patience
        if patience is not None and self.progress.num_stale >= patience:
            self.progress.stopped_early = True
        return is_best
