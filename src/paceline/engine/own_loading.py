"""Loads the samples of a loop of the user: this rank's micro-batches of an epoch, on its device."""

from collections.abc import Iterator
from typing import Any, Protocol

import torch

from paceline.data.split import Split
from paceline.data.tree import align_leaves, moved
from paceline.engine.batches import MicroBatch, batch_slices, load_steps
from paceline.engine.own_job import OwnJob


class SampleSequence(Protocol):
    """Any sequence of samples: a list, a tensor, a data set, a range."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, index: Any, /) -> Any:
        """Return a sample."""
        ...


def load_epoch(job: OwnJob, split: Split, rank: int, first: int) -> Iterator[tuple[int, list[MicroBatch]]]:
    """Yield the steps from `first` to the end of its epoch or of the run, with this rank's micro-batches."""
    plan, config = job.plan, job.config
    end = min((first // plan.steps_per_epoch + 1) * plan.steps_per_epoch, plan.total_steps)
    fill = "even" if config.batch_norm == "sync" else "none"
    slices, last_slices = (
        batch_slices(plan, size, rank, weight=1, fill=fill) for size in (plan.global_batch, plan.batch_size(end - 1))
    )
    yield from load_steps(
        split, plan, range(first, end), slices=slices, last_slices=last_slices, config=config, device=job.device
    )


def on_device(micro_batch: MicroBatch, device: torch.device) -> MicroBatch:
    """Return a micro-batch with its tensors on this device, aligned in memory as at every world size."""
    return micro_batch._replace(batch=moved(align_leaves(micro_batch.batch), device, torch.preserve_format))
