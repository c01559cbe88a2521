"""The objective of a step: each loss is a sum over the global batch, divided by its count over the global batch.

A micro-batch contributes its sums. Nobody averages means: the counts of all ranks are known before the first backward
pass, so that ragged or padded micro-batches get the weight of what they contain.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor
from torch.distributed import Work

from paceline.core.errors import TaskError
from paceline.core.units import plural
from paceline.data.catalog import Splits
from paceline.data.tree import Tree
from paceline.parallel.team import Team
from paceline.tasks.task import Task, by_name, counts_samples


class Whole(Protocol):
    """The loss of a task with `whole_batch`, which needs all micro-batches of a step before the first."""

    def begin(self, step: int, batches: Sequence[tuple[Tree, int]], *, batch_size: int) -> None:
        """Begin a step. Collective: every rank must call it."""
        ...


class Objective:
    """Weights the losses of micro-batches by counts over the global batch."""

    def __init__(self, task: Task, splits: Splits, team: Team, *, gradient_weight: int) -> None:
        self._task = task
        self._team = team
        self._gradient_weight = gradient_weight
        self._counted: tuple[str, ...] = ()
        """The losses with their own counts; the same on every rank, also on one without samples."""
        self._whole_loss: Whole | None = cast("Any", task.loss) if task.whole_batch else None
        if not counts_samples(task) and self._whole_loss is None:
            first = splits.train.fetch(np.array([0]), 0)
            self._counted = tuple(sorted(by_name(task.count(task.targets(first)))))
        self._own: list[dict[str, int]] = []
        self._samples: list[int] = []
        self._step, self._batch_size = 0, 0
        self._pending: tuple[Tensor, Work | None] | None = None
        """The counts of this step, and the message that adds up those of all ranks."""
        self._totals: dict[str, int] = {}

    def begin(self, step: int, batches: Sequence[tuple[Tree, int]], *, batch_size: int) -> None:
        """Count the targets of this rank's micro-batches and start to add them up. Collective if there is a count.

        Each is given with its number of samples; 0 if it must not count.
        """
        self._step, self._batch_size = step, batch_size
        self._samples = [num_samples for _, num_samples in batches]
        if self._counted:
            self._own = [self._count(batch) if num_samples else {} for batch, num_samples in batches]
            sums = torch.tensor([sum(own.get(name, 0) for own in self._own) for name in self._counted])
            self._pending, self._totals = (sums, self._team.start_sum(sums)), {}
        if self._whole_loss is not None:
            self._whole_loss.begin(step, batches, batch_size=batch_size)

    def counts(self, number: int, losses: Mapping[str, Tensor]) -> dict[str, int]:
        """Return the counts of the losses of a micro-batch."""
        own = self._own[number] if self._counted else {}
        return {name: own.get(name, self._samples[number]) for name in losses}

    def weighted(self, losses: Mapping[str, Tensor], number: int) -> Tensor:
        """Return the part of a micro-batch in the objective, times the world size where gradients are averaged.

        The sums of all ranks have arrived by then, during the forward pass.
        """
        if self._pending is not None:
            sums, work = self._pending
            if work is not None:
                work.wait()
            self._totals, self._pending = self._checked(sums.tolist(), losses), None
        weights = self._task.weights(self._step) if len(losses) > 1 else {}
        counts = self.counts(number, losses)
        terms = []
        for name, loss in losses.items():
            if self._whole_loss is not None:  # its gradient is that of the global batch, micro-batch by micro-batch
                factor = (self._gradient_weight if self._samples[number] else 0.0) * weights.get(name, 1.0)
                terms.append(loss * factor)
                continue
            if self._task.reduction == "mean" and self._samples[number] and not counts[name]:
                raise TaskError(
                    f"{name} is the mean over no targets in a micro-batch of step {self._step + 1}",
                    hint='return a sum, which is 0 then: reduction = "sum"',
                )
            factor = self._gradient_weight / self._totals.get(name, self._batch_size)
            factor = (
                counts[name] * factor if self._task.reduction == "mean" else factor if self._samples[number] else 0.0
            )
            factor *= weights.get(name, 1.0)
            terms.append(loss if factor == 1 else loss * factor)
        return terms[0] if len(terms) == 1 else sum(terms[1:], start=terms[0])

    def _count(self, batch: Tree) -> dict[str, int]:
        found = by_name(self._task.count(self._task.targets(batch)))
        if tuple(sorted(found)) != self._counted:
            names = (", ".join(each) for each in (sorted(found), self._counted))
            raise TaskError(f"count returned {next(names)} in step {self._step + 1}, and {next(names)} before",
                            hint="return the same names every time")  # fmt: skip
        return {name: self._whole(value) for name, value in found.items()}

    def _whole(self, value: Any) -> int:
        number = value.item() if isinstance(value, Tensor) else value
        if not isinstance(number, int) or number < 0:
            raise TaskError(
                f"count returned {number} in step {self._step + 1}, rank {self._team.world.rank}",
                hint="return how many targets count: an integer of at least 0",
            )
        return int(number)

    def _checked(self, totals: Sequence[int], losses: Mapping[str, Tensor]) -> dict[str, int]:
        found = dict(zip(self._counted, totals, strict=True))
        if not found.keys() <= losses.keys():
            raise TaskError(
                f"loss has {', '.join(losses)}; count has {', '.join(found)}",
                hint="count may leave names out, not add any",
            )
        empty = next((name for name, total in found.items() if total == 0), None)
        if empty is not None:
            raise TaskError(
                f"step {self._step + 1} has nothing to learn from: the count of {empty} is 0 in all "
                f"{plural(self._batch_size, 'sample')}",
                hint="remove samples without targets, or use a larger --global-batch",
            )
        return found


def named_losses(losses: Any) -> dict[str, Tensor]:
    """Return the losses of a micro-batch by name, each one number; refuse anything else."""
    if isinstance(losses, Tensor) and losses.dim() == 0:
        return {"loss": losses}
    named = by_name(losses)
    for name, loss in named.items():
        if not isinstance(loss, Tensor):
            raise TaskError(f"{name} is a {type(loss).__name__}", hint="return a tensor, or a dict of tensors")
        if loss.dim():
            shape = tuple(loss.shape)
            raise TaskError(f"{name} returned a tensor of shape {shape}, not one number", hint="add .sum()")
    if not named:
        raise TaskError("loss returned no losses", hint="return a tensor, or a dict of tensors")
    return named
