"""The header of a run: device, world, data, batch plan, learning rate, model."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import torch

from paceline.core.config import DEFAULTS_BY_NAME, Config
from paceline.core.no_effect import without_effect
from paceline.core.units import count, duration, plural, table, value_text
from paceline.engine.evaluate import num_scored
from paceline.engine.job import Job
from paceline.engine.recorded_job import RecordedJob
from paceline.models.summary import num_parameters
from paceline.parallel.batchnorm import has_batch_norm
from paceline.parallel.device import describe_device, describe_kernels, describe_threads, has_fast_bf16
from paceline.parallel.team import Team
from paceline.parallel.visible_gpus import count_gpus
from paceline.records.environment import cpu_name
from paceline.records.folder import RunFolder

FASTEST = 1000
"""Steps per second of a very fast run."""
LONGEST_PLAUSIBLE = FASTEST * 3600 * 24 * 30
OPTIMIZERS = {"sgd": "sgd with Nesterov momentum", "adam": "adam", "adamw": "adamw"}


def header(job: Job, team: Team, folder: RunFolder) -> Iterator[str]:
    """Yield the lines of the header."""
    config = job.config
    threads = describe_threads(team.num_sharing)
    layout = ", channels-last" if job.memory_format is torch.channels_last else ""
    kernels = describe_kernels(team.device)
    yield f"run      {folder.path}"
    yield f"device   {describe_device(team.device, cpu_name())}, {threads}, {config.precision}{layout}{kernels}"
    yield f"world    {_world(team)}, mode {job.choice}"
    yield f"data     {', '.join([config.data, *_facts(job.splits.facts)])}: {job.splits}"
    yield from _task(job)
    yield f"batch    {job.plan}"
    yield from _scores(job, folder)
    yield from _exactness(job)
    yield f"lr       {job.lr_plan}"
    optimizer = OPTIMIZERS.get(config.optimizer, config.optimizer)
    yield f"model    {config.model}, {count(num_parameters(job.model))} parameters, {optimizer}"


def settings_table(config: Config) -> str:
    """Return every setting with its value, one per line."""
    return table(
        ["setting", ""], [[name, value_text(name, value)] for name, value in config.resolved().as_dict().items()]
    )


def _task(job: Job) -> Iterator[str]:
    """Yield a line with the task, unless it is image classification."""
    if job.task_name != "classification":
        better = job.scoring.better(job.task.best)
        counted = "" if job.task.unit == "samples" else f", counted in {job.task.unit}"
        yield f"task     {job.task_name}{counted}; best checkpoint: {better} {job.task.best}"


def _facts(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the facts of the data that say how large a sample and an output are."""
    if "image_shape" in facts:
        yield "×".join(map(str, facts["image_shape"]))
    if "num_classes" in facts:
        yield f"{facts['num_classes']} classes"
    if "vocab_size" in facts:
        yield f"vocabulary of {count(facts['vocab_size'])}"


def rank_dependent(job: RecordedJob) -> list[str]:
    """Return what depends on the number of ranks by design, beyond rounding: nothing where the batch has shards."""
    if job.plan.shards is not None:
        return []
    has_local_norm = has_batch_norm(job.model) and job.config.batch_norm == "local"
    drops = any("drop" in type(module).__name__.lower() and getattr(module, "p", 1) for module in job.model.modules())
    return ["batch norm"] * has_local_norm + ["dropout"] * drops


def _exactness(job: Job) -> Iterator[str]:
    """Yield a line with what differs from one rank, and how to make it the same."""
    if job.reducer is not None:
        own = plural(torch.get_num_threads(), "thread")
        ghost = "; batch norm sees a shard at a time" if has_batch_norm(job.model) else ""
        worlds = f"at every world size from 1 to {job.plan.shards}"
        yield f"exact    bitwise: the same bits {worlds}, with {own} per rank{ghost}"
    elif job.plan.world_size > 1:
        others = " and ".join(rank_dependent(job))
        other = (
            f", except {others}, which depend{'' if ' and ' in others else 's'} on the number of ranks"
            if others
            else ""
        )
        yield f"exact    order: as on one rank up to rounding{other}; for the same bits: --exact bitwise"


def _scores(job: Job, folder: RunFolder) -> Iterator[str]:
    """Yield a line with the number of samples to score, if that is not all."""
    if job.plan.trial_samples is None:
        return
    splits = {} if job.splits.valid_is_test else {"validation": job.splits.valid}
    splits["test"] = job.splits.test
    numbers = {name: (num_scored(job, split), len(split)) for name, split in splits.items()}
    some = [f"{count(scored)} of {count(of)} {name}" for name, (scored, of) in numbers.items() if scored < of]
    if some:
        why = "the run ends within its first epoch"
        yield f"scores   over {' and '.join(some)} samples: {why}; paceline eval {folder.path} scores all"


def settings_warnings(job: RecordedJob) -> Iterator[str]:
    """Yield warnings about settings that have no effect, or that make the run slow or the result poor."""
    values = {field.name: getattr(job.config, field.name) for field in fields(job.config)}
    yield from without_effect(values, DEFAULTS_BY_NAME, world_size=job.plan.world_size)
    if job.plan.total_steps > LONGEST_PLAUSIBLE:
        least = duration(job.plan.total_steps / FASTEST)
        yield f"{count(job.plan.total_steps)} steps take {least} at {count(FASTEST)} steps/s: is --epochs as meant?"
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
    starter = "" if world.launcher == "none" else f", started by {world.launcher}"
    return f"{plural(world.size, 'rank')}{starter}{', process group adopted' if world.adopted else ''}"
