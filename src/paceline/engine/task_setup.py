"""The task of a run: built from the facts of the data, and tried on a few samples before training."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from paceline.core.config import Config
from paceline.core.errors import ConfigError, PacelineError, TaskError, suggestion
from paceline.core.keys import mix
from paceline.core.metrics import Sums
from paceline.data.catalog import Splits
from paceline.data.seeding import seed_generators
from paceline.data.split import Ids
from paceline.data.tree import Tree, leaves, moved
from paceline.engine.model_setup import autocast, memory_format
from paceline.engine.objective import named_losses
from paceline.engine.scoring import Scoring, Tally
from paceline.models.trial_pass import unchanged
from paceline.parallel.team import Team
from paceline.tasks.choose_task import TASKS, choose_task
from paceline.tasks.task import Task, by_name, counts_samples

TASK_DRAWS = 0x7A5C
NUM_TRIED = 8
REFUSED, NOTED = (0.5, 2.0), (0.99, 1.01)
"""Bounds of the loss of eight samples divided by the sum of eight losses: outside, a task is refused or noted."""
SMALLEST = 1e-12


def build_task(config: Config, name: str, splits: Splits, device: torch.device) -> Task:
    """Return the task; modules among its attributes, such as a teacher, are frozen and moved to the device."""
    seed_generators(mix(config.seed, TASK_DRAWS), device)
    smoothing = {"label_smoothing": config.label_smoothing} if name == "classification" else {}
    if config.label_smoothing and not smoothing:
        problem = f"--label-smoothing {config.label_smoothing:g} is for classification, but the task is {name}"
        raise ConfigError(problem, hint="drop it, or smooth the labels in the loss of your task")
    task = choose_task(name, {**splits.facts, **smoothing}, metrics=config.metric)
    if task.whole_batch:
        task.reduction = "mean"  # in evaluation, over blocks; in training the loss is the objective itself
    for value in [each for kind in type(task).__mro__ for each in vars(kind).values()] + list(vars(task).values()):
        if isinstance(value, nn.Module):
            value.to(device).eval().requires_grad_(requires_grad=False)
    return task


def check_task(config: Config, scoring: Scoring, model: nn.Module, splits: Splits, team: Team) -> list[str]:
    """Try a task on a few samples in evaluation mode, and return notes; the model is left unchanged.

    Refuses a loss that is not a sum over samples, whose gradient would depend on the number of ranks. Image
    classification is known to be right.
    """
    name = config.task or splits.task
    if name == "classification":
        return []
    task = scoring.task
    trial = _Trial(config, task, model, splits, team.device)
    ids = np.arange(min(NUM_TRIED, len(splits.train)))
    with unchanged(model):
        whole = trial.losses(ids)
        _check_best(name, scoring, trial, ids)
        if name in TASKS or len(ids) < 2 or task.whole_batch:
            return []
        singles = [trial.losses(ids[place : place + 1]) for place in range(len(ids))]
    _check_counts(name, task, trial, ids)
    factor = len(ids) if task.reduction == "mean" and counts_samples(task) else 1
    notes = []
    for loss in whole:
        together, alone = whole[loss] * factor, sum(single[loss] for single in singles)
        if task.reduction == "mean" and not counts_samples(task):
            continue
        notes += _compared(name, together, alone, num=len(ids))
    return notes


class _Trial:
    """Forward passes of a task over training samples."""

    def __init__(self, config: Config, task: Task, model: nn.Module, splits: Splits, device: torch.device) -> None:
        self._config, self._task, self._model, self._splits, self._device = config, task, model, splits, device

    def batch(self, ids: Ids) -> Tree:
        return moved(self._splits.train.fetch(ids, 0), self._device, memory_format(self._config, self._model))

    def losses(self, ids: Ids) -> dict[str, float]:
        """Return the losses of some samples by name."""
        losses = self.run(ids, self._task.eval_loss)
        return {name: loss.item() for name, loss in named_losses(losses).items()}

    def run(self, ids: Ids, function: Callable[[Tree, Tree], Any]) -> Any:
        """Return what a function makes of the outputs and targets of some samples."""
        batch = self.batch(ids)
        try:
            with torch.no_grad(), autocast(self._config, self._device):
                outputs, targets = self._task.forward(self._model.eval(), batch), self._task.targets(batch)
                return function(outputs, targets)
        except PacelineError:
            raise
        except Exception as cause:
            shapes = ", ".join("×".join(map(str, leaf.shape)) for leaf in leaves(batch))
            raise TaskError(
                f"{self._config.model} and the task do not fit the data: {type(cause).__name__}: {cause}",
                hint=f"a batch of {len(ids)} has tensors of {shapes}; forward takes the batch, loss its outputs",
            ) from cause


def _check_best(name: str, scoring: Scoring, trial: _Trial, ids: Ids) -> None:
    """Refuse a task whose best checkpoint is picked by a score that it does not have."""
    tally = Tally()
    for each, parts, bits in trial.run(ids, partial(scoring.batch_sums, num_samples=len(ids))):
        tally.add(each, parts, bits=bits)
    scores = scoring.scores(Sums(parts=tally.take(), samples=len(ids))).by_name
    if scoring.task.best not in scores:
        raise TaskError(
            f"{name} picks the best checkpoint by {scoring.task.best}, but its scores are {', '.join(scores)}",
            hint=suggestion(scoring.task.best, scores),
        )


def _check_counts(name: str, task: Task, trial: _Trial, ids: Ids) -> None:
    """Refuse counts that do not add up over samples."""
    if counts_samples(task):
        return
    whole = _counts(task, trial.batch(ids))
    singles = [_counts(task, trial.batch(ids[place : place + 1])) for place in range(len(ids))]
    for key, value in whole.items():
        alone = sum(single[key] for single in singles)
        if value != alone:
            raise TaskError(
                f"the count of {name} does not add up: {len(ids)} samples give {value}, one by one they give {alone}",
                hint="count the targets that count, and not padding",
            )


def _counts(task: Task, batch: Tree) -> dict[str, Any]:
    return {key: int(value) for key, value in by_name(task.count(task.targets(batch))).items()}


def _compared(name: str, together: float, alone: float, *, num: int) -> list[str]:
    """Return a note if the loss of all samples is not the sum of their losses; refuse it if it is far off."""
    if abs(together) < SMALLEST and abs(alone) < SMALLEST:
        return []
    ratio = together / alone if abs(alone) >= SMALLEST else math.inf
    given = f"{num} samples give {together:.4g}, one by one they give {alone:.4g}"
    if math.isnan(ratio) or NOTED[0] <= ratio <= NOTED[1]:
        return []
    if REFUSED[0] <= ratio <= REFUSED[1]:
        return [f"the loss of {name} is not quite a sum over samples ({given}): its gradient may depend on the ranks"]
    if 0 < ratio < REFUSED[0]:
        hint = 'return a sum (reduction="sum"), or set reduction = "mean"'
        raise TaskError(f"the loss of {name} looks like a mean: {given}", hint=hint)
    hint = "make it a sum, or set whole_batch = True if it compares samples with each other"
    raise TaskError(f"the loss of {name} is not a sum over samples: {given}", hint=hint)
