"""The header of a run: device, world, data, batch plan, learning rate, model."""

import os
from collections.abc import Iterator

import torch

from paceline.core.units import count, plural
from paceline.engine.evaluate import scored_ids
from paceline.engine.job import Job
from paceline.models.summary import num_parameters
from paceline.parallel.batchnorm import has_batch_norm
from paceline.parallel.detect import count_gpus
from paceline.parallel.device import describe_device, describe_kernels, describe_threads, has_fast_bf16
from paceline.parallel.team import Team
from paceline.records.environment import cpu_name
from paceline.records.folder import RunFolder

OPTIMIZERS = {"sgd": "sgd with Nesterov momentum", "adam": "adam", "adamw": "adamw"}


def header(job: Job, team: Team, folder: RunFolder) -> Iterator[str]:
    """Yield the lines of the header."""
    config, shape = job.config, "×".join(map(str, job.splits.image_shape))
    threads = describe_threads(team.num_sharing)
    layout = ", channels-last" if job.memory_format is torch.channels_last else ""
    kernels = describe_kernels(team.device)
    yield f"run      {folder.path}"
    yield f"device   {describe_device(team.device, cpu_name())}, {threads}, {config.precision}{layout}{kernels}"
    yield f"world    {_world(team)}, mode {job.choice}"
    yield f"data     {config.data}, {shape}, {job.splits.num_classes} classes: {job.splits}"
    yield f"batch    {job.plan}"
    yield from _scores(job, folder)
    yield from _exactness(job)
    yield f"lr       {job.lr_plan}"
    yield f"model    {config.model}, {count(num_parameters(job.model))} parameters, {OPTIMIZERS[config.optimizer]}"


def _exactness(job: Job) -> Iterator[str]:
    """Yield a line with what is the same at every world size, and how to make the rest the same."""
    has_norm = has_batch_norm(job.model)
    if job.reducer is not None:
        own = plural(torch.get_num_threads(), "thread")
        ghost = "; batch norm sees a shard at a time" if has_norm else ""
        worlds = f"at every world size from 1 to {job.plan.shards}"
        yield f"exact    bitwise: the same bits {worlds}, with {own} per rank{ghost}"
    elif job.plan.world_size > 1:
        except_norm = ""
        if has_norm and job.config.batch_norm == "local":
            except_norm = ", but batch norm sees each rank's samples alone (--batch-norm sync: all)"
        yield f"exact    order: as on one rank up to rounding{except_norm}; for the same bits: --exact bitwise"


def _scores(job: Job, folder: RunFolder) -> Iterator[str]:
    """Yield a line with the number of samples to score, if that is not all."""
    if job.plan.trial_samples is None:
        return
    splits = {} if job.splits.valid_is_test else {"validation": job.splits.valid}
    splits["test"] = job.splits.test
    numbers = {name: (len(scored_ids(job.plan, split)), len(split)) for name, split in splits.items()}
    some = [f"{count(scored)} of {count(of)} {name}" for name, (scored, of) in numbers.items() if scored < of]
    if some:
        why = "the run ends within its first epoch"
        yield f"scores   over {' and '.join(some)} samples: {why}; paceline eval {folder.path} scores all"


def warnings(job: Job) -> Iterator[str]:
    """Yield warnings about settings that make the run slow or the result poor."""
    if job.config.precision == "bf16" and not has_fast_bf16(job.device):
        yield (
            f"{job.device} has no bf16 instructions, so --precision bf16 is emulated and about 12× slower than fp32; "
            "use --precision fp32"
        )
    unusable = count_gpus(os.environ) if job.config.device == "auto" and job.device.type == "cpu" else 0
    if unusable:
        yield f"this host has {plural(unusable, 'GPU')}, but torch can use none; install a CUDA build of torch"
    if job.config.precision == "fp16" and job.device.type == "cpu":
        yield "--precision fp16 is slow on a CPU; use --precision fp32"
    shards, batch = job.plan.shards, job.plan.global_batch
    if shards is not None and batch < 2 * shards and has_batch_norm(job.model):
        yield (
            f"{count(batch)} samples in {count(shards)} shards leave batch norm with one sample at a time; "
            f"use --global-batch {count(2 * shards)} or more, or fewer --shards"
        )


def _world(team: Team) -> str:
    world = team.world
    return "1 rank" if world.size == 1 else f"{world.size} ranks, started by {world.launcher}"
