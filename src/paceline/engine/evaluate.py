"""Exact evaluation: every sample of a split, or a fixed subset, once, in fixed blocks, at every world size."""

import os
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from paceline.core.batch_plan import BatchPlan
from paceline.core.config import Config
from paceline.core.keys import mix
from paceline.core.metrics import Score
from paceline.core.world import World
from paceline.data.loader import load_batches
from paceline.data.order import evenly_spaced_ids
from paceline.data.seeding import seed_generators
from paceline.data.split import Batch, Ids, Split
from paceline.engine.checkpoint import Checkpoints, load_checkpoint
from paceline.engine.job import Job, build_job
from paceline.engine.meter import count_correct
from paceline.parallel.amx import limit_isa
from paceline.parallel.module_state import Snapshot
from paceline.parallel.team import Team, joined
from paceline.records.code import code_changes
from paceline.records.entries import SplitName
from paceline.records.folder import RunFolder

BLOCK = 256
"""Samples per forward pass. Fixed, so that the sums do not depend on the world size."""


def scored_ids(plan: BatchPlan, split: Split) -> Ids:
    """Return the samples of a split that a run scores: all, or in a trial at most as many as it trains on.

    A trial is a run that ends within its first epoch. Scoring all samples could take far longer than its steps.
    """
    if plan.trial_samples is None:
        return np.arange(len(split))
    most = -(-plan.trial_samples // BLOCK) * BLOCK
    return evenly_spaced_ids(num_samples=len(split), num_ids=min(most, len(split)))


@torch.no_grad()
def evaluate(job: Job, team: Team, split: Split, scored: Ids | None = None) -> Score:
    """Score the model on a split, or on the samples `scored`. Collective: every rank must call it.

    Each rank takes every W-th block.
    """
    scored = np.arange(len(split)) if scored is None else scored
    num_blocks = -(-len(scored) // BLOCK)
    mine = list(range(team.world.rank, num_blocks, team.world.size))
    rounds = -(-num_blocks // team.world.size)
    extra = [0] * (rounds - len(mine)) if job.choice.mode == "fsdp" else []  # a sharded forward pass needs all ranks
    ids = [scored[block * BLOCK : (block + 1) * BLOCK] for block in mine + extra]
    batches = load_batches(
        split, [(block, None) for block in ids], workers=job.config.workers, pin=job.device.type == "cuda"
    )
    sums = []
    was_training = job.evaluated.training
    job.evaluated.eval()
    before = Snapshot(job.evaluated)
    for block, batch in zip(mine + extra, map(Batch.aligned, batches), strict=True):
        before.restore()  # a block must not depend on those that this rank has seen
        seed_generators(mix(job.config.seed, block), job.device)
        images, labels, _ = batch.to(job.device, job.memory_format)
        with job.autocast():
            sums.append(_sums(job.evaluated, images, labels))
    before.restore()
    job.evaluated.train(was_training)
    return sum(team.gather(_score(sums[: len(mine)], sum(map(len, ids[: len(mine)])))), start=Score())


def _sums(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the loss and the correct predictions of a block, summed on the device: it need not wait for each block."""
    logits = model(images).float()
    loss_sum = functional.cross_entropy(logits, labels, reduction="none").double().sum()
    return torch.stack([loss_sum, *count_correct(logits, labels)])


def _score(sums: list[torch.Tensor], num_samples: int) -> Score:
    """Read the sums of all blocks at once, and return their total."""
    read = torch.stack(sums).tolist() if sums else []
    scores = [Score.of(loss, correct1=int(correct1), correct5=int(correct5)) for loss, correct1, correct5 in read]
    return sum(scores, start=Score(samples=num_samples))


def score_checkpoint(
    config: Config, folder: RunFolder, *, checkpoint: str, split: SplitName, warn: Callable[[str], None]
) -> Score:
    """Evaluate a checkpoint of a run on one of its splits, and warn of code that has changed since training."""
    state = load_checkpoint(Checkpoints(folder.checkpoints, keep=config.keep).named(checkpoint), mapped=True)
    with joined(World(), device=config.device, threads=config.threads) as team:
        note = limit_isa(team, os.environ) if config.precision == "bf16" else None
        job = build_job(config, team)
        for text in [*([] if note is None else [note]), *code_changes(folder, state.get("code", {}), job.code)]:
            warn(text)
        job.restore_evaluated(state, team)
        return evaluate(job, team, getattr(job.splits, split))
