"""The batches of a run: this rank's slices of each global batch, loaded. Every loop uses them."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import torch

from paceline.core.batch_plan import BatchPlan
from paceline.core.config import Config
from paceline.data.loader import load_batches
from paceline.data.order import epoch_order
from paceline.data.requests import EpochRequests
from paceline.data.split import Split
from paceline.data.tree import Tree

Fill = Literal["none", "one", "even"]
"""How many micro-batches a rank computes at least: any number, one, or as many as any other rank."""


class BatchSlice(NamedTuple):
    """The samples of one micro-batch, as indices into the global batch."""

    position: int
    """Index of the micro-batch over all ranks."""
    indices: range
    weight: float
    """Weight of its samples in the batch; 0 for a rank that only takes part in collectives."""


class MicroBatch(NamedTuple):
    """A slice of the global batch with its samples loaded."""

    position: int
    batch: Tree
    weight: float
    num_samples: int
    first: int = 0
    """Index of its first sample in the global batch."""


def batch_slices(plan: BatchPlan, batch_size: int, rank: int, *, weight: int, fill: Fill) -> list[BatchSlice]:
    """Return the slices of a global batch of this size that a rank computes, one per micro-batch.

    A small last batch leaves some ranks with fewer micro-batches than others, or with none. `fill` gives them samples
    of weight 0, so that they take part in every collective.
    """
    per_sample = weight / batch_size
    own = plan.micro_batches(batch_size, rank)
    slices = [BatchSlice(position, part, len(part) * per_sample) for position, part in own.items()]
    if fill == "none":
        return slices
    every = range(plan.world_size)
    least = max(len(plan.micro_batches(batch_size, each)) for each in every) if fill == "even" else 1
    filler = BatchSlice(0, range(min(2, batch_size)), 0.0)  # batch norm over vectors needs two samples
    return slices + [filler] * (least - len(slices))


def load_steps(  # noqa: PLR0913 - the settings, the data and the slices
    split: Split,
    plan: BatchPlan,
    steps: range,
    *,
    slices: Sequence[BatchSlice],
    last_slices: Sequence[BatchSlice],
    config: Config,
    device: torch.device,
) -> Iterator[tuple[int, list[MicroBatch]]]:
    """Yield steps of one epoch with this rank's micro-batches; the last of them may have other slices."""
    epoch = steps.start // plan.steps_per_epoch
    start = epoch * plan.steps_per_epoch
    requests = EpochRequests(
        order=epoch_order(seed=config.seed, epoch=epoch, num_samples=plan.num_samples, order=config.sample_order),
        epoch=epoch,
        global_batch=plan.global_batch,
        batches=range(steps.start - start, steps.stop - start),
        slices=[part.indices for part in slices],
        last_slices=[part.indices for part in last_slices],
    )
    batches = load_batches(split, requests, workers=config.workers, pin=device.type == "cuda")
    for step in steps:
        parts = last_slices if step == steps.stop - 1 else slices
        yield (
            step,
            [
                MicroBatch(part.position, next(batches), part.weight, len(part.indices), part.indices.start)
                for part in parts
            ],
        )
