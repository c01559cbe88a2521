"""The model of a run: built from the seed, checked against the data and a checkpoint, in its precision and layout."""

import contextlib
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import nn

from paceline.core.batch_plan import BatchPlan
from paceline.core.config import Config
from paceline.core.errors import RunError
from paceline.core.keys import mix
from paceline.core.setting_types import SampleOrder
from paceline.data.catalog import Splits
from paceline.data.order import epoch_order, shuffled
from paceline.data.seeding import seed_generators
from paceline.data.split import Split
from paceline.data.tree import align_leaves, leaves, moved
from paceline.models.family import Preparable
from paceline.models.trial_pass import check_model, require_parameters
from paceline.models.zoo import build_model
from paceline.parallel.exact.determinism import deterministic_only
from paceline.parallel.state_check import ChangingState, find_changing_state
from paceline.tasks.task import Task, by_name

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}
INITIAL_WEIGHTS = 0x1417
FIRST_LOOK = 0xF125
NUM_FIRST_LOOK = 2048


def prepare_model(config: Config, splits: Splits, device: torch.device, *, task_name: str) -> nn.Module:
    """Build the model with weights from the seed, check that it fits the data, and move it to its device."""
    seed_generators(mix(config.seed, INITIAL_WEIGHTS), device)
    model = build_model(config.model, **splits.facts)
    if isinstance(model, Preparable):  # replaced by a checkpoint that is restored later
        model.prepare(first_look(splits.train, config.sample_order))
    model.to(device)  # some models compute on a GPU only
    if task_name == "classification":
        num_classes, image_shape = splits.facts["num_classes"], splits.facts["image_shape"]
        check_model(model, num_classes=num_classes, image_shape=image_shape, name=config.model)
    else:
        require_parameters(model, config.model)
    return model.to(memory_format=memory_format(config, model))  # pyright: ignore[reportCallIssue]


def first_look(train: Split, order: SampleOrder = "auto") -> torch.Tensor:
    """Return a few thousand training samples without augmentation: the same on every rank and for every seed."""
    ids = shuffled(key=FIRST_LOOK, num_samples=len(train), order=order)[:NUM_FIRST_LOOK]
    return next(leaves(train.fetch(np.sort(ids), None)))


def find_state(config: Config, model: nn.Module, task: Task, splits: Splits, plan: BatchPlan) -> ChangingState:
    """Find out what forward passes change besides gradients, from two shards; refuse what cannot be bitwise."""
    order = epoch_order(seed=config.seed, epoch=0, num_samples=plan.num_samples, order=config.sample_order)
    device, size = (
        next(model.parameters()).device,
        max(1, min(plan.global_batch // (plan.shards or 1), len(order) // 2)),
    )

    def compute(shard: int) -> None:
        batch = align_leaves(splits.train.fetch(order[shard * size : (shard + 1) * size], 0))
        seed_generators(mix(config.seed, shard), device)
        batch = moved(batch, device, memory_format(config, model))
        with autocast(config, device):
            losses = by_name(task.loss(task.forward(model, batch), task.targets(batch)))
        torch.stack(list(losses.values())).sum().backward()

    with deterministic_only():
        return find_changing_state(model, compute, name=config.model)


def check_fit(model: nn.Module, saved: dict[str, torch.Tensor], *, name: str) -> None:
    """Refuse weights of another model, for example after a change of the user's code."""
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    saved_shapes = {key: tuple(value.shape) for key, value in saved.items()}
    for key in [*shapes, *saved_shapes]:
        if shapes.get(key) != saved_shapes.get(key):
            here, there = (_shape_text(found.get(key)) for found in (shapes, saved_shapes))
            raise RunError(
                f"the checkpoint does not fit the model: {key} {there} in the checkpoint, but {here} in {name}",
                hint="restore the code it was trained with (copies are in code/ in the run folder), or start a new run",
            )


def _shape_text(shape: tuple[int, ...] | None) -> str:
    return "does not exist" if shape is None else f"is {'×'.join(map(str, shape)) or 'a number'}"


def autocast(config: Config, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context of a forward pass in the precision of the settings."""
    if config.precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=PRECISIONS[config.precision])


def memory_format(config: Config, model: nn.Module) -> torch.memory_format:
    """Return channels-last for models that convolve images, unless it was turned off."""
    convolves = any(isinstance(module, nn.Conv2d) for module in model.modules())
    return torch.channels_last if config.channels_last and convolves else torch.contiguous_format
