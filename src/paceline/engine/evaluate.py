"""Exact evaluation: every sample of a split, or a fixed subset, once, in fixed blocks, at every world size."""

import os
from collections.abc import Callable

import torch

from paceline.core.config import Config
from paceline.core.keys import mix
from paceline.core.metrics import Scores, Sums
from paceline.core.world import World
from paceline.data.loader import load_batches
from paceline.data.order import evenly_spaced_ids
from paceline.data.requests import BlockRequests
from paceline.data.seeding import seed_generators
from paceline.data.split import Ids, Split
from paceline.data.tree import Tree, align_leaves, map_leaves, moved
from paceline.engine.checkpoint import Checkpoints, load_checkpoint
from paceline.engine.job import Job, build_job
from paceline.engine.scoring import Part, Tally
from paceline.parallel.amx import limit_isa
from paceline.parallel.join import joined
from paceline.parallel.module_state import Snapshot
from paceline.parallel.sharded import free_gathered
from paceline.parallel.team import Team
from paceline.records.code import code_changes
from paceline.records.entries import SplitName
from paceline.records.folder import RunFolder


def scored_ids(job: Job, split: Split) -> Ids | None:
    """Return the samples of a split that a run scores: all (None), or in a trial at most as many as it trains on.

    A trial is a run that ends within its first epoch. Scoring all samples could take far longer than its steps.
    """
    if job.plan.trial_samples is None:
        return None
    return evenly_spaced_ids(num_samples=len(split), num_ids=num_scored(job, split))


def num_scored(job: Job, split: Split) -> int:
    """Return the number of samples of a split that a run scores."""
    if job.plan.trial_samples is None:
        return len(split)
    block = job.task.eval_batch
    return min(-(-job.plan.trial_samples // block) * block, len(split))


@torch.no_grad()
def evaluate(job: Job, team: Team, split: Split, scored: Ids | None = None) -> Scores:
    """Score the model on a split, or on the samples `scored`. Collective: every rank must call it.

    Each rank takes every W-th block. Blocks are the same at every world size, and so are their sums.
    """
    num_samples, size = len(split) if scored is None else len(scored), job.task.eval_batch
    num_blocks = -(-num_samples // size)
    mine = list(range(team.world.rank, num_blocks, team.world.size))
    rounds = -(-num_blocks // team.world.size)
    extra = [0] * (rounds - len(mine)) if job.choice.mode == "fsdp" else []  # a sharded forward pass needs all ranks
    requests = BlockRequests(num_samples=num_samples, scored=scored, blocks=mine + extra, largest=size)
    batches = load_batches(split, requests, workers=job.config.workers, pin=job.device.type == "cuda")
    sizes = [min(size, num_samples - block * size) for block in mine]
    tally = Tally()
    was_training = job.evaluated.training
    job.evaluated.eval()
    before = Snapshot(job.evaluated)
    for number, (block, batch) in enumerate(zip(mine + extra, map(align_leaves, batches), strict=True)):
        before.restore()  # a block must not depend on those that this rank has seen
        seed_generators(mix(job.config.seed, block), job.device)
        with job.autocast():
            sums = _block_sums(job, moved(batch, job.device, job.memory_format), min(size, num_samples - block * size))
        if number < len(mine):
            for name, parts, bits in sums:
                tally.add(name, parts, bits=bits)
    before.restore()
    free_gathered(job.evaluated)
    job.evaluated.train(was_training)
    own = Sums(parts=tally.take(), samples=sum(sizes))
    return job.scoring.scores(team.total(own, lambda every: sum(every, start=Sums())))


def _block_sums(job: Job, batch: Tree, num_samples: int) -> list[tuple[str, tuple[Part, ...], int]]:
    """Return the sums of losses and metrics of a block, on the device: it need not wait for each block."""
    outputs = map_leaves(job.task.forward(job.evaluated, batch), _single_precision)
    return job.scoring.batch_sums(outputs, job.task.targets(batch), num_samples)


def _single_precision(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in {torch.bfloat16, torch.float16} else tensor


def score_checkpoint(
    config: Config, folder: RunFolder, *, checkpoint: str, split: SplitName, warn: Callable[[str], None]
) -> Scores:
    """Evaluate a checkpoint of a run on one of its splits, and warn of code that has changed since training."""
    state = load_checkpoint(Checkpoints(folder.checkpoints, keep=config.keep).named(checkpoint))
    with joined(World(), device=config.device, threads=config.threads) as team:
        note = limit_isa(team, os.environ) if config.precision == "bf16" else None
        job = build_job(config, team)
        for text in [*([] if note is None else [note]), *code_changes(folder, state.get("code", {}), job.code)]:
            warn(text)
        job.restore_evaluated(state, team)
        return evaluate(job, team, getattr(job.splits, split))
