"""Exact evaluation: every image of a split, or a fixed subset, once, in fixed blocks, at every world size."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from paceline.core.keys import mix
from paceline.core.metrics import Score
from paceline.core.plan import BatchPlan
from paceline.data.loader import load_batches
from paceline.data.order import spread_ids
from paceline.data.split import Batch, Ids, Split
from paceline.data.streams import seed_streams
from paceline.engine.job import Job
from paceline.engine.meter import count_correct
from paceline.parallel.team import Team

BLOCK = 256
"""Images of one forward pass. Fixed, so that the sums do not depend on who computes them."""


def scored_ids(plan: BatchPlan, split: Split) -> Ids:
    """Return the images of a split that a run scores: all, or in a trial no more than it trains on, in whole blocks.

    A trial is a run that ends within its first epoch. To score all images might take it far longer than its steps.
    """
    if plan.trial_images is None:
        return np.arange(len(split))
    most = -(-plan.trial_images // BLOCK) * BLOCK
    return spread_ids(images=len(split), number=min(most, len(split)))


@torch.no_grad()
def evaluate(job: Job, team: Team, split: Split, scored: Ids | None = None) -> Score:
    """Score the model on a split, or on the images `scored`. Collective: every rank must call it.

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
    scores = []
    was_training = job.evaluated.training
    job.evaluated.eval()
    for block, batch in zip(mine + extra, map(Batch.aligned, batches), strict=True):
        seed_streams(mix(job.config.seed, block), job.device)
        images = batch.images.to(job.device, memory_format=job.memory_format, non_blocking=True)
        with job.autocast():
            scores.append(_score(job.evaluated, images, batch.labels.to(job.device)))
    job.evaluated.train(was_training)
    by_rank = team.gather(scores[: len(mine)])
    total = Score()
    for block in range(num_blocks):  # in the order of the images, so that the sum has one value
        total += by_rank[block % team.world.size][block // team.world.size]
    return total


def _score(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> Score:
    logits = model(images).float()
    loss_sum = functional.cross_entropy(logits, labels, reduction="none").double().sum().item()
    correct1, correct5 = count_correct(logits, labels)
    return Score(loss_sum=loss_sum, correct1=correct1, correct5=correct5, images=len(labels))
