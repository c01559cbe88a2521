"""What every task is: a loss that is a sum over samples, its count, and metrics that add up."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from paceline.data.tree import Tree, leaves

Losses = Tensor | Mapping[str, Tensor]
Count = int | Tensor
Counts = Count | Mapping[str, Count]
Parts = Tensor | tuple[Tensor | int | float, ...]
"""Additive sums of a micro-batch: integers are added as integers, floats are rounded to multiples of 2^-40."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """A number over many samples: additive sums of a micro-batch, and a function of their totals."""

    sums: Callable[[Any, Any], Parts] | str
    """Takes outputs and targets and returns sums; or the name of a loss, for its sum and its count."""
    value: Callable[..., float | Mapping[str, float]] = operator.truediv
    """Takes the totals of the sums, and returns the score, or several by name."""
    better: Literal["higher", "lower"] = "higher"
    train: bool = True
    """Whether it is also computed in training, not only in evaluation."""


class Task:
    """What a model learns: how a batch becomes a loss, and how outputs become metrics. Only `loss` is required."""

    metrics: Mapping[str, Metric] = {}
    best: str = "loss"
    """The score that picks the best checkpoint; ties are decided by the lower loss."""
    unit: ClassVar[str] = "samples"
    """What `count` counts: samples, tokens, pixels."""
    eval_batch: int = 256
    """Samples of a forward pass in evaluation, the same at every world size."""
    reduction: Literal["sum", "mean"] = "sum"
    """What `loss` returns: the sum over its count, or the mean."""
    whole_batch: bool = False
    """Whether the loss compares samples with each other: it gets the outputs of the global batch, in their order."""

    def forward(self, model: nn.Module, batch: Tree) -> Tree:
        """Return the outputs of the model for a batch."""
        return model(batch[0])

    def targets(self, batch: Tree) -> Tree:
        """Return the part of a batch that the outputs are compared with."""
        return batch[1]

    def loss(self, outputs: Any, targets: Any) -> Losses:
        """Return the loss of a micro-batch, or several by name."""
        raise NotImplementedError(f"{type(self).__name__} has no loss(outputs, targets)")

    def eval_loss(self, outputs: Any, targets: Any) -> Losses:
        """Return the loss in evaluation."""
        return self.loss(outputs, targets)

    def count(self, targets: Any) -> Counts:
        """Return how many targets count, by the name of the loss if there are several: its denominator."""
        return len(next(leaves(targets)))

    def weights(self, step: int) -> Mapping[str, float]:
        """Return the factors of named losses in this step; 1 where absent."""
        return {}

    def predict(self, outputs: Any) -> Mapping[str, Any]:
        """Return what the model predicts, one row per sample."""
        return {"output": outputs}


def counts_samples(task: Task) -> bool:
    """Tell whether the denominator of every loss is the number of samples."""
    return type(task).count is Task.count


def by_name(values: Any) -> dict[str, Any]:
    """Return losses or counts by name; a single one is called loss."""
    return dict(values) if isinstance(values, Mapping) else {"loss": values}
