"""The losses of run.backward: checked, and added up to the objective whose gradient is computed."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from paceline.core.errors import TaskError


def checked_losses(loss: Any, total: Any) -> dict[str, tuple[Tensor, int]]:
    """Return sums of losses with their totals, by name."""
    named: Any = {"loss": (loss, total)} if isinstance(loss, Tensor) else loss
    if not isinstance(named, Mapping) or not named:
        raise TaskError(f"run.backward got a {type(loss).__name__}", hint="pass a tensor, or a dict of (sum, total)")
    for name, pair in named.items():
        if not isinstance(pair, tuple) or len(pair) != 2 or pair[1] is None:
            raise TaskError(
                "run.backward needs the total that the sum is divided by", hint="pass batch.size or batch.total(...)"
            )
        if not isinstance(pair[0], Tensor) or pair[0].dim():
            shape = tuple(pair[0].shape) if isinstance(pair[0], Tensor) else type(pair[0]).__name__
            raise TaskError(f"{name} is of shape {shape}, not one number", hint="add .sum()")
        if int(pair[1]) <= 0:
            raise TaskError(f"the total of {name} is {int(pair[1])}", hint="pass batch.size or batch.total(...)")
    return {name: (value, int(total)) for name, (value, total) in named.items()}


def objective(losses: Mapping[str, tuple[Tensor, int]], *, counts: bool) -> Tensor:
    """Return the sum of the losses, each divided by its total; where the samples do not count, times 0."""
    terms = [value * ((1.0 if counts else 0.0) / total) for value, total in losses.values()]
    return terms[0] if len(terms) == 1 else sum(terms[1:], start=terms[0])
