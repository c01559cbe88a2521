"""Explains a GPU that ran out of memory: what used it, and which setting to change to what."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from paceline.core.errors import RunError
from paceline.core.units import plural
from paceline.engine.job import Job


@contextmanager
def memory_explained(job: Job) -> Iterator[None]:
    """Turn torch's OutOfMemoryError into an error with a hint."""
    try:
        yield
    except torch.OutOfMemoryError as problem:
        samples = -(-job.plan.global_batch // (job.plan.world_size * job.plan.accumulate))
        raise RunError(
            f"the GPU ran out of memory with {plural(samples, 'sample')} per micro-batch: {_first_sentence(problem)}",
            hint=f"{' or '.join(_ways(job, samples))}; --resume continues from the last checkpoint",
        ) from problem


def _ways(job: Job, samples: int) -> Iterator[str]:
    if samples > 1 and job.plan.shards is None:
        yield f"use --accumulate {2 * job.plan.accumulate}"
    elif samples > 1:
        yield f"use a smaller --global-batch than {job.plan.global_batch}"
    if job.config.precision == "fp32":
        yield "--precision bf16"
    if job.choice.mode == "ddp":
        yield "--mode fsdp"
    elif job.choice.mode == "single":
        yield "more GPUs"


def _first_sentence(problem: Exception) -> str:
    return str(problem).split(". ", 2)[1] if ". " in str(problem) else str(problem)
