"""The training loop.

    for each epoch:
        for each batch:
            step            forward, backward, update: the batch in one or more parts
            record          once per interval
            evaluate, save  when due
            stop            when someone asked, or when nothing gets better

Every decision is shared by all ranks, and a lone rank is a team of one: nothing here asks whether it is alone.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import torch
from torch.nn import functional

from paceline.core.keys import mix
from paceline.core.metrics import Score
from paceline.data.loader import Request, load_batches
from paceline.data.order import epoch_order
from paceline.data.split import Batch
from paceline.data.streams import seed_streams
from paceline.engine.clock import COPY, DATA, EVALUATE, EXCHANGE, FORWARD, RECORD, SAVE, UPDATE, Clock
from paceline.engine.evaluate import evaluate, scored_ids
from paceline.engine.job import Job
from paceline.engine.recorder import Recorder
from paceline.engine.signals import StopRequest
from paceline.engine.state import Progress
from paceline.models.zoo import list_models
from paceline.parallel.idle import idle
from paceline.parallel.modes import without_exchange
from paceline.parallel.team import Team
from paceline.records.entries import EvalRecord, State


class Share(NamedTuple):
    """Places of a batch that a rank computes at once, and what their mean loss counts; 0 where they are not counted."""

    number: int
    """The part of the batch that they are, counted over all ranks."""
    places: range
    weight: float


class Part(NamedTuple):
    """The images of a share."""

    number: int
    batch: Batch
    weight: float


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
        self.is_our_model = job.config.model in list_models()
        """Then it draws from torch alone; to seed other streams for every part would take time."""

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
                stopping = self.team.poll(stop.asked) and progress.step < plan.total_steps
                self.clock.lap(RECORD)
                if stopping:
                    self.save(save)
                    return State.STOPPED
                if progress.stopped_early:
                    break
        return State.FINISHED

    def batches_of_epoch(self) -> Iterator[tuple[int, list[Part]]]:
        """Yield the steps left in this epoch with this rank's parts of each batch."""
        job, first = self.job, self.progress.step
        epoch = first // job.plan.steps_per_epoch
        end = min((epoch + 1) * job.plan.steps_per_epoch, job.plan.total_steps)
        order = epoch_order(seed=job.config.seed, epoch=epoch, images=job.plan.images)
        places_of = functools.cache(self.places)  # one answer for the last batch, one for all others
        steps = [places_of(job.plan.batch_images(step)) for step in range(first, end)]
        requests: list[Request] = []
        for step, parts in enumerate(steps, start=first):
            start = step % job.plan.steps_per_epoch * job.plan.global_batch
            requests += [(order[start + part.places.start : start + part.places.stop], epoch) for part in parts]
        batches = load_batches(job.splits.train, requests, workers=job.config.workers, pin=job.device.type == "cuda")
        for step, parts in enumerate(steps, start=first):
            yield step, [Part(part.number, next(batches), part.weight) for part in parts]

    def places(self, images: int) -> list[Share]:
        """Return the places of a global batch that this rank computes, part by part.

        A last batch of few images leaves some ranks with fewer parts than others, or without any. They get an image
        that counts for nothing, so that they take part in everything that all ranks do together.
        """
        plan, rank = self.job.plan, self.team.world.rank
        per_image = self.job.gradient_weight / images
        parts = [Share(number, part, len(part) * per_image) for number, part in plan.parts(images, rank).items()]
        if self.job.reducer is not None:  # which asks nothing of a rank without images
            return parts
        least = len(plan.parts(images, 0)) if self.job.config.batch_norm == "sync" else 1
        return parts + [Share(number, range(1), 0.0) for number in plan.part_numbers(rank)[len(parts) : least]]

    def train_step(self, step: int, parts: list[Part]) -> float:
        """Compute one step and return its learning rate. Collective: every rank must call it."""
        job, clock = self.job, self.clock
        clock.lap(DATA)
        lr = job.lr_plan.at(step)
        for group in job.optimizer.param_groups:
            group["lr"] = lr
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

    def gradients(self, step: int, parts: list[Part]) -> None:
        """Compute the gradient of the whole batch from this rank's parts; the last one exchanges it with the others."""
        job, last = self.job, len(parts) - 1
        with job.shares(step, self.team) as shares:
            for index, part in enumerate(parts):
                seed_streams(mix(job.config.seed, step, part.number), job.device, torch_only=self.is_our_model)
                silent = contextlib.nullcontext() if index == last else without_exchange(job.forward)
                with silent, shares.shard(part.weight):
                    self.backward(part)
        self.clock.lap(EXCHANGE)

    def backward(self, part: Part) -> None:
        """Add the gradient of a part of the batch."""
        job, clock, batch = self.job, self.clock, part.batch.aligned()
        images = batch.images.to(job.device, memory_format=job.memory_format, non_blocking=True)
        labels = batch.labels.to(job.device, non_blocking=True)
        targets = labels if batch.targets is None else batch.targets.to(job.device, non_blocking=True)
        clock.lap(COPY)
        with job.autocast(), contextlib.nullcontext() if part.weight else idle(job.model):
            logits = job.forward(images)
            loss = functional.cross_entropy(logits, targets, label_smoothing=job.config.label_smoothing)
        clock.lap(FORWARD)
        if part.weight:
            self.recorder.meter.add(loss, logits, labels)
        scaled = job.scaler.scale(loss if part.weight == 1 else loss * part.weight)
        clock.watch(scaled)
        scaled.backward()
        clock.lap(EXCHANGE)

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
            self.end_epoch(None, is_best=False)
        if is_best or is_last or job.config.save_every.due(step=step, steps_per_epoch=every):
            self.save(save, is_best=is_best)

    def save(self, save: Save, *, is_best: bool = False) -> None:
        """Save, with all that was counted until here. Collective: every rank must call it."""
        self.recorder.share()
        self.clock.lap(RECORD)
        save(is_best=is_best)
        self.clock.lap(SAVE)

    def end_epoch(self, valid: Score | None, *, is_best: bool) -> None:
        """Record an epoch. Collective: every rank must call it."""
        self.recorder.end_epoch(valid, is_best=is_best, unreadable=self.job.unreadable(self.team))

    def evaluate(self, *, ends_epoch: bool) -> bool:
        """Evaluate, record it, and tell whether it is the best so far. Collective: every rank must call it."""
        self.job.settle(self.team)
        start = self.clock.seconds
        split = self.job.splits.valid
        valid: Score = evaluate(self.job, self.team, split, scored_ids(self.job.plan, split))
        self.clock.lap(EVALUATE)
        is_best = self.progress.judge(valid)
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
                split_images=len(split),
            )
            self.recorder.put(record)
        patience = self.job.config.patience
        if patience is not None and self.progress.num_stale >= patience:
            self.progress.stopped_early = True
        return is_best
