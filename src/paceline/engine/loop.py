"""The training loop.

    for each epoch:
        for each batch:
            step            forward, backward, update: the batch in one or more parts
            record          once per interval
            evaluate, save  when due
            stop            when someone asked, or when nothing gets better

Every decision is shared by all ranks, and a lone rank is a team of one: nothing here asks whether it is alone.
"""

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch.nn import functional

from paceline.core.keys import mix
from paceline.core.metrics import Score
from paceline.data.loader import Request, load_batches
from paceline.data.order import epoch_order
from paceline.data.split import Batch
from paceline.engine.clock import BACKWARD, DATA, EVALUATE, FORWARD, RECORD, SAVE, UPDATE, Clock
from paceline.engine.evaluate import evaluate
from paceline.engine.job import Job
from paceline.engine.recorder import Recorder
from paceline.engine.signals import StopRequest
from paceline.engine.state import Progress
from paceline.parallel.idle import idle
from paceline.parallel.modes import without_exchange
from paceline.parallel.team import Team
from paceline.records.entries import State

IDLE = range(1)
"""What a rank without images computes, with weight 0: the first image of the batch."""


class Save(Protocol):
    """Saves a checkpoint of the current progress. Collective: every rank must call it."""

    def __call__(self, *, is_best: bool = False) -> None:
        """Save; the best so far is kept when older ones go."""
        ...


class Training:
    """One run of the loop: what it works with, and the few things it does."""

    def __init__(self, job: Job, progress: Progress, team: Team, recorder: Recorder, *, clock: Clock) -> None:
        self.job = job
        self.progress = progress
        self.team = team
        self.recorder = recorder
        self.clock = clock

    def run(self, stop: StopRequest, *, save: Save, check: Callable[[], None]) -> State:
        """Train until the plan is done, patience is out, or someone asks to stop. Collective."""
        plan, progress = self.job.plan, self.progress
        self.job.model.train()
        while progress.step < plan.total_steps and not progress.stopped_early:
            for step, parts in self.batches_of_epoch():
                lr = self.train_step(step, parts)
                progress.step = step + 1
                self.after_step(lr, save)
                if self.job.config.check_replicas and progress.step % self.job.config.check_replicas == 0:
                    check()
                if self.team.poll(stop.asked) and progress.step < plan.total_steps:
                    self.recorder.share()
                    save()
                    return State.STOPPED
                if progress.stopped_early:
                    break
        return State.FINISHED

    def batches_of_epoch(self) -> Iterator[tuple[int, list[Batch]]]:
        """Yield the steps left in this epoch with this rank's part of each batch.

        A last batch of fewer images than ranks leaves some without any: they get an image that counts for nothing, so
        that they take part in what all ranks do together.
        """
        job, first = self.job, self.progress.step
        epoch = first // job.plan.steps_per_epoch
        end = min((epoch + 1) * job.plan.steps_per_epoch, job.plan.total_steps)
        order = epoch_order(seed=job.config.seed, epoch=epoch, images=job.plan.images)
        requests: list[Request] = []
        num_parts = []
        for step in range(first, end):
            start = step % job.plan.steps_per_epoch * job.plan.global_batch
            parts = job.plan.parts(step, self.team.world.rank) or [IDLE]
            requests += [(order[start + part.start : start + part.stop], epoch) for part in parts]
            num_parts.append(len(parts))
        batches = load_batches(job.splits.train, requests, workers=job.config.workers, pin=job.device.type == "cuda")
        for step, number in zip(range(first, end), num_parts, strict=True):
            yield step, [next(batches) for _ in range(number)]

    def train_step(self, step: int, parts: list[Batch]) -> float:
        """Compute one step and return its learning rate. Collective: every rank must call it."""
        job, clock = self.job, self.clock
        clock.lap(DATA)
        lr = job.lr_plan.at(step)
        for group in job.optimizer.param_groups:
            group["lr"] = lr
        torch.default_generator.manual_seed(mix(job.config.seed, step, self.team.world.rank) >> 1)
        self.gradients(step, parts)
        if job.config.clip is not None:
            job.scaler.unscale_(job.optimizer)
            torch.nn.utils.clip_grad_norm_(job.model.parameters(), job.config.clip)
        job.scaler.step(job.optimizer)
        job.scaler.update()
        job.optimizer.zero_grad(set_to_none=True)
        if job.ema is not None:
            job.ema.update(step)
        clock.lap(UPDATE)
        return lr

    def gradients(self, step: int, parts: list[Batch]) -> None:
        """Compute the gradient of the whole batch: this rank's parts, each weighted by its share of the images."""
        job = self.job
        if not job.plan.parts(step, self.team.world.rank):
            with idle(job.model):
                self.backward(parts[0], weight=0.0)
            return
        per_image = job.gradient_weight / job.plan.batch_images(step)
        for batch in parts[:-1]:
            with without_exchange(job.forward):
                self.backward(batch, weight=len(batch.labels) * per_image)
        self.backward(parts[-1], weight=len(parts[-1].labels) * per_image)

    def backward(self, batch: Batch, *, weight: float) -> None:
        """Add the gradient of a part of the batch. Exchanges it with the other ranks as the mode says."""
        job, clock = self.job, self.clock
        images = batch.images.to(job.device, memory_format=job.memory_format, non_blocking=True)
        labels = batch.labels.to(job.device, non_blocking=True)
        targets = labels if batch.targets is None else batch.targets.to(job.device, non_blocking=True)
        with job.autocast():
            logits = job.forward(images)
            loss = functional.cross_entropy(logits, targets, label_smoothing=job.config.label_smoothing)
        clock.lap(FORWARD)
        if weight:
            self.recorder.meter.add(loss, logits, labels)
        job.scaler.scale(loss if weight == 1 else loss * weight).backward()
        clock.lap(BACKWARD)

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
        self.clock.lap(RECORD)
        is_best = False
        if is_last or job.config.eval_every.due(step=step, steps_per_epoch=every):
            is_best = self.evaluate(ends_epoch=ends_epoch)
        elif ends_epoch:
            self.recorder.end_epoch(None, is_best=False)
        if is_best or is_last or job.config.save_every.due(step=step, steps_per_epoch=every):
            self.recorder.share()
            save(is_best=is_best)
            self.clock.lap(SAVE)

    def evaluate(self, *, ends_epoch: bool) -> bool:
        """Evaluate, record it, and tell whether it is the best so far. Collective: every rank must call it."""
        self.job.settle(self.team)
        start = self.clock.seconds
        valid: Score = evaluate(self.job, self.team, self.job.splits.valid)
        self.clock.lap(EVALUATE)
        is_best = self.progress.judge(valid)
        if ends_epoch:
            self.recorder.end_epoch(valid, is_best=is_best)
        else:
            self.recorder.evaluation("valid", valid, is_best=is_best, seconds=self.clock.seconds - start)
        patience = self.job.config.patience
        if patience is not None and self.progress.num_stale >= patience:
            self.progress.stopped_early = True
        return is_best
