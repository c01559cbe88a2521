"""The training loop.

    for each epoch:
        for each batch:
            step            forward, backward, update: the batch in one or more micro-batches
            record          once per interval
            evaluate, save  when due
            stop            on a signal, or when patience is out

Every decision is shared by all ranks, and a lone rank is a team of one: there are no special cases for it.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from torch import Tensor

from paceline.core.errors import TaskError
from paceline.core.keys import mix
from paceline.core.metrics import Scores
from paceline.core.stopping import StopRequest
from paceline.data.seeding import seed_generators
from paceline.data.tree import Tree, align_leaves, moved
from paceline.engine.balance import Balance
from paceline.engine.batches import BatchSlice, MicroBatch, batch_slices, load_steps
from paceline.engine.clock import COPY, DATA, EVALUATE, FORWARD, GRAD_SYNC, RECORD, SAVE, UPDATE, Clock
from paceline.engine.evaluate import evaluate, scored_ids
from paceline.engine.job import Job
from paceline.engine.objective import Objective, named_losses
from paceline.engine.progress import Progress
from paceline.engine.recorder import Recorder
from paceline.models.zoo import list_models
from paceline.parallel.buffers import without_statistics
from paceline.parallel.modes import without_grad_sync
from paceline.parallel.team import Team
from paceline.records.entries import EvalRecord, State


class Computed(NamedTuple):
    """What the forward pass of a micro-batch returned, for the metrics."""

    losses: dict[str, Tensor]
    outputs: Tree
    targets: Tree


class Save(Protocol):
    """Saves a checkpoint of the current progress. Collective: every rank must call it."""

    def __call__(self, *, is_best: bool = False) -> None:
        """Save; the best checkpoint so far is kept when older ones are removed."""
        ...


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
        self.saved_step: int | None = None
        """The step of the last checkpoint of this start."""
        self.is_our_model = job.config.model in list_models()
        """Built-in models draw from torch alone: other generators need not be seeded for every micro-batch."""

    def run(self, stop: StopRequest, *, save: Save, check: Callable[[], None]) -> State:
        """Train until the plan is done, patience is out, or a signal asks to stop. Collective."""
        plan, progress = self.job.plan, self.progress
        self.job.model.train()
        while progress.step < plan.total_steps and not progress.stopped_early:
            for step, micro_batches in self.batches_of_epoch():
                lr = self.train_step(step, micro_batches)
                progress.step = step + 1
                self.after_step(lr, save)
                if self.job.config.check_replicas and progress.step % self.job.config.check_replicas == 0:
                    check()
                stopping = self.team.poll(stop.asked) and progress.step < plan.total_steps
                self.clock.end_phase(RECORD)
                if stopping:
                    self.save(save)
                    return State.STOPPED
                if progress.stopped_early:
                    break
        return State.FINISHED

    def batches_of_epoch(self) -> Iterator[tuple[int, list[MicroBatch]]]:
        """Yield the steps left in this epoch, or until shards are balanced, with this rank's micro-batches of each.

        Collective: every rank must call it.
        """
        job, first = self.job, self.progress.step
        epoch = first // job.plan.steps_per_epoch
        end = min((epoch + 1) * job.plan.steps_per_epoch, job.plan.total_steps)
        if self.balance is not None:
            end = min(end, self.balance.decide(first))
            self.plan = self.balance.plan
        slices, last_slices = self.slices(job.plan.global_batch), self.slices(job.plan.batch_size(end - 1))
        yield from load_steps(
            job.splits.train,
            job.plan,
            range(first, end),
            slices=slices,
            last_slices=last_slices,
            config=job.config,
            device=job.device,
        )

    def slices(self, batch_size: int) -> list[BatchSlice]:
        """Return the slices of a global batch of this size that this rank computes, one per micro-batch."""
        job = self.job
        if job.reducer is not None and not job.reducer.is_sharded:
            fill = "none"  # gradients need not come from every rank
        else:
            fill = "even" if job.reducer is not None or job.config.batch_norm == "sync" else "one"
        return batch_slices(self.plan, batch_size, self.team.world.rank, weight=job.gradient_weight, fill=fill)

    def train_step(self, step: int, micro_batches: list[MicroBatch]) -> float:
        """Compute one step and return its learning rate. Collective: every rank must call it."""
        job, clock = self.job, self.clock
        clock.end_phase(DATA)
        lr = job.lr_plan.at(step)
        for group in job.optimizer.param_groups:
            group["lr"] = lr * group["lr_factor"]
        self.gradients(step, micro_batches)
        if job.config.clip is not None:
            job.scaler.unscale_(job.optimizer)
            job.clip_gradient()
        job.scaler.step(job.optimizer)
        job.scaler.update()
        job.optimizer.zero_grad(set_to_none=True)
        if job.ema is not None:
            job.ema.update(step)
        clock.end_phase(UPDATE)
        return lr

    def gradients(self, step: int, micro_batches: list[MicroBatch]) -> None:
        """Compute the gradient of the global batch; the last micro-batch synchronises it with the other ranks.

        With --exact bitwise, a step whose gradients exceed the range of their fixed-point sums is computed again.
        """
        job, last = self.job, len(micro_batches) - 1
        counted = [(part.batch, part.num_samples if part.weight else 0) for part in micro_batches]
        self.objective.begin(step, counted, batch_size=job.plan.batch_size(step))
        outputs, is_exact = [], False
        while not is_exact:
            outputs = []
            with job.step_context(self.team, len(micro_batches)) as context:
                for number, micro_batch in enumerate(micro_batches):
                    seed_generators(
                        mix(job.config.seed, step, micro_batch.position), job.device, torch_only=self.is_our_model
                    )
                    syncing = contextlib.nullcontext() if number == last else without_grad_sync(job.forward)
                    with syncing, context.micro_batch(micro_batch.weight):
                        outputs.append(self.backward(micro_batch, number))
            is_exact = context.is_exact
        for number, (micro_batch, output) in enumerate(zip(micro_batches, outputs, strict=True)):
            if micro_batch.weight:
                counts = self.objective.counts(number, output.losses)
                self.recorder.meter.add(*output, counts=counts, num_samples=micro_batch.num_samples)
        self.clock.end_phase(GRAD_SYNC)

    def backward(self, micro_batch: MicroBatch, number: int) -> Computed:
        """Add the gradient of a micro-batch, the number-th of this rank, and return its losses and outputs."""
        job, clock = self.job, self.clock
        batch = moved(align_leaves(micro_batch.batch), job.device, job.memory_format)
        clock.end_phase(COPY)
        counts = micro_batch.weight or job.reducer is not None  # the reducer resets the state of the model itself
        with job.autocast(), contextlib.nullcontext() if counts else without_statistics(job.model):
            outputs, targets = job.task.forward(job.forward, batch), job.task.targets(batch)
            losses = named_losses(job.task.loss(outputs, targets))
        clock.end_phase(FORWARD)
        loss = self.objective.weighted(losses, number)
        if not loss.requires_grad:
            problem = "the loss does not depend on any parameter of the model"
            raise TaskError(problem, hint="was it computed under no_grad, or detached?")
        scaled = job.scaler.scale(loss)
        clock.watch(scaled)
        scaled.backward()
        clock.end_phase(GRAD_SYNC)
        return Computed({name: loss.detach() for name, loss in losses.items()}, outputs, targets)

    def after_step(self, lr: float, save: Save) -> None:
        """Record, evaluate and save, each when it is due."""
        job, step = self.job, self.progress.step
        every = job.plan.steps_per_epoch
        ends_epoch = step % every == 0
        is_last = step == job.plan.total_steps
        if step % job.config.log_every == 0 or ends_epoch or is_last:
            self.recorder.step(lr)
        else:
            self.recorder.pulse()
        self.clock.end_phase(RECORD)
        is_best = False
        if is_last or job.config.eval_every.due(step=step, steps_per_epoch=every):
            is_best = self.evaluate(ends_epoch=ends_epoch)
        elif ends_epoch:
            self.end_epoch(None, is_best=False)
        if is_best or is_last or job.config.save_every.due(step=step, steps_per_epoch=every):
            self.save(save, is_best=is_best)

    def save(self, save: Save, *, is_best: bool = False) -> None:
        """Save, with the metrics so far, unless this step is saved already. Collective: every rank must call it."""
        if self.saved_step == self.progress.step:
            return
        self.saved_step = self.progress.step
        self.recorder.gather()
        self.clock.end_phase(RECORD)
        save(is_best=is_best)
        self.clock.end_phase(SAVE)

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
