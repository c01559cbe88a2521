"""Regression: squared error; mean absolute error."""

import torch
from torch import Tensor

from paceline.core.errors import TaskError
from paceline.tasks.task import Metric, Task


def _absolute_error(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    missing = targets.isnan()
    return torch.where(missing, 0.0, outputs - targets).abs().double().sum(), (~missing).sum()


class Regression(Task):
    """Numbers: targets are N×K, with nan where one is missing."""

    best = "error"
    metrics = {"error": Metric(sums=_absolute_error, better="lower")}  # noqa: RUF012 - a constant

    def count(self, targets: Tensor) -> Tensor:
        """Return how many targets are there."""
        return (~targets.isnan()).sum()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the squared errors."""
        if outputs.shape != targets.shape:  # they would be broadcast against each other
            one, other = ("×".join(map(str, each.shape)) for each in (outputs, targets))
            raise TaskError(
                f"the model returns {one} numbers for targets of {other}",
                hint="give both the shape N×K: for one number per sample, targets[:, None]",
            )
        return torch.where(targets.isnan(), 0.0, outputs - targets.nan_to_num()).square().sum()

    def predict(self, outputs: Tensor) -> dict[str, Tensor]:
        """Return the numbers."""
        return {"value": outputs}
