"""Losses that compare the samples of the global batch with each other (`whole_batch`), as contrastive losses do.

The outputs of all ranks are gathered in the order of samples. Every rank computes the whole loss from the same numbers,
and each micro-batch gets the gradient with respect to its own rows of the outputs. Nothing is added up over ranks
before the backward pass, so the loss and these gradients have the same bits at every world size.

With several micro-batches per rank, the outputs of all are computed once without gradients, and again with gradients:
with the same random numbers and buffers.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from paceline.core.batch_plan import BatchPlan
from paceline.core.config import Config
from paceline.core.errors import ConfigError, TaskError
from paceline.core.keys import mix
from paceline.data.seeding import seed_generators
from paceline.data.tree import Tree, align_leaves, concatenated, leaves, map_leaves, moved
from paceline.engine.model_setup import autocast, memory_format
from paceline.engine.objective import named_losses
from paceline.parallel.module_state import Snapshot
from paceline.parallel.sharded import free_gathered
from paceline.parallel.team import Team
from paceline.tasks.task import Task


class Rows(NamedTuple):
    """The outputs and targets of a micro-batch, in main memory."""

    first: int
    """Index of its first sample in the global batch."""
    outputs: Tree
    targets: Tree


class Gathered(NamedTuple):
    """The whole losses of a step, and their gradients with respect to the outputs of the global batch."""

    losses: dict[str, Tensor]
    gradients: dict[str, list[Tensor]]
    """By loss, for each floating-point tensor of the outputs."""


def gather_whole_batch(task: Task, model: nn.Module, config: Config, plan: BatchPlan, team: Team) -> None:
    """Let the loss of a task see the global batch in training; `model` is not wrapped."""
    if config.balance:
        raise ConfigError("--balance is not supported with a loss over the whole batch", hint="drop --balance")
    setattr(task, "loss", WholeLoss(task, model, config, plan, team))  # noqa: B010 - replaces a method of one object


class WholeLoss:
    """Takes the place of `task.loss`: in a step, the whole loss, with the gradient of one micro-batch.

    `begin` comes before the step, and a call for each micro-batch of this rank. Elsewhere it is the loss itself.
    """

    def __init__(self, task: Task, model: nn.Module, config: Config, plan: BatchPlan, team: Team) -> None:
        self._loss: Callable[[Any, Any], Any] = task.loss
        self._task, self._model, self._config, self._plan, self._team = task, model, config, plan, team
        self._starts: list[int] = []
        self._sizes: list[int] = []
        self._next = 0
        self._gathered: Gathered | None = None

    def begin(self, step: int, batches: Sequence[tuple[Tree, int]], *, batch_size: int) -> None:
        """Begin a step with this rank's micro-batches, each with its number of samples. Collective."""
        own = self._plan.micro_batches(batch_size, self._team.world.rank)
        positions = [*own, *([0] * (len(batches) - len(own)))]  # the others fill up, with samples that do not count
        self._starts = [part.start for part in own.values()] + [0] * (len(batches) - len(own))
        self._sizes = [num_samples for _, num_samples in batches]
        self._next, self._gathered = 0, None
        if self._plan.shards is not None or self._plan.accumulate > 1:
            seeds = [mix(self._config.seed, step, position) for position in positions]
            self._gathered = self._whole(self._replayed([batch for batch, _ in batches], seeds))

    def __call__(self, outputs: Tree, targets: Tree) -> Any:
        """Return the losses of the next micro-batch of this rank. Collective with one micro-batch per rank."""
        if not self._sizes or not torch.is_grad_enabled():
            return self._loss(outputs, targets)
        number, self._next = self._next, (self._next + 1) % len(self._sizes)  # bitwise may compute a step twice
        if self._gathered is None:
            self._gathered = self._whole([self._rows(number, outputs, targets)])
        start, size = self._starts[number], self._sizes[number]
        inputs, losses = _floating(outputs), {}
        for name, loss in self._gathered.losses.items():
            own = [gradient[start : start + size] for gradient in self._gathered.gradients[name]]
            if size:
                through = sum((tensor * rows).sum() for tensor, rows in zip(inputs, own, strict=True))
            else:
                through = sum(tensor.sum() * 0.0 for tensor in inputs)
            assert isinstance(through, Tensor)
            losses[name] = loss + (through - through.detach()).to(loss.dtype)  # the value of the loss: x - x is 0
        return losses

    @torch.no_grad()
    def _replayed(self, batches: Sequence[Tree], seeds: Sequence[int]) -> list[Rows]:
        """Return the outputs of all micro-batches of this rank; buffers stay as they are."""
        before, found = Snapshot(self._model), []
        layout = memory_format(self._config, self._model)
        for number, (batch, seed) in enumerate(zip(batches, seeds, strict=True)):
            if self._plan.shards is not None:  # each shard starts from the buffers before the step
                before.restore()
            seed_generators(seed, self._team.device)
            there = moved(align_leaves(batch), self._team.device, layout)
            with autocast(self._config, self._team.device):
                outputs, targets = self._task.forward(self._model, there), self._task.targets(there)
            found.append(self._rows(number, outputs, targets))
        before.restore()
        free_gathered(self._model)
        return found

    def _rows(self, number: int, outputs: Tree, targets: Tree) -> Rows:
        size = self._sizes[number]
        for leaf in leaves(outputs):
            if size and (not leaf.dim() or len(leaf) != size):
                raise TaskError(
                    f"the outputs of {size} samples have shape {tuple(leaf.shape)}, without a row for each",
                    hint="with whole_batch, return tensors whose first dimension is the sample",
                )
        outputs, targets = (map_leaves(tree, _in_main_memory) for tree in (outputs, targets))
        return Rows(self._starts[number], outputs, targets)

    def _whole(self, rows: Sequence[Rows]) -> Gathered:
        """Return the losses of the global batch from the rows of all ranks. Collective: every rank must call it."""
        counted = [each for each, size in zip(rows, self._sizes, strict=True) if size]
        every = sorted((each for theirs in self._team.gather(counted) for each in theirs), key=lambda each: each.first)
        device = self._team.device
        outputs = map_leaves(concatenated([each.outputs for each in every]), lambda tensor: _leaf(tensor, device))
        targets = map_leaves(concatenated([each.targets for each in every]), lambda tensor: tensor.to(device))
        with torch.enable_grad(), autocast(self._config, device):
            losses = named_losses(self._loss(outputs, targets))
        inputs, gradients = _floating(outputs), {}
        for name, loss in losses.items():
            if not loss.requires_grad:
                problem = f"{name} does not depend on the outputs of the model"
                raise TaskError(problem, hint="was it computed under no_grad, or detached?")
            found = torch.autograd.grad(loss, inputs, retain_graph=True, allow_unused=True)
            gradients[name] = [
                torch.zeros_like(tensor) if gradient is None else gradient
                for tensor, gradient in zip(inputs, found, strict=True)
            ]
        return Gathered({name: loss.detach() for name, loss in losses.items()}, gradients)


def _floating(tree: Tree) -> list[Tensor]:
    return [leaf for leaf in leaves(tree) if leaf.is_floating_point()]


def _in_main_memory(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().cpu()


def _leaf(tensor: Tensor, device: torch.device) -> Tensor:
    there = tensor.to(device)
    return there.requires_grad_() if there.is_floating_point() else there
