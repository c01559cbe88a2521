"""A teacher that follows the model."""

from typing import Any

import torch
from torch import nn

from paceline.core.errors import TaskError


class Ema:
    """The moving average of the model, for a task that learns from it: an attribute that is called like the model.

    It starts as a copy of the model, follows it after each step, has no gradient, is in evaluation mode, and is saved.
    """

    def __init__(self, decay: float) -> None:
        if not 0 <= decay < 1:
            raise TaskError(f"Ema({decay:g}) is not an average", hint="give a decay of 0 to 1, such as Ema(0.996)")
        self.decay = decay
        self.module: nn.Module | None = None
        """The averaged model; None until the run has built the model."""

    @torch.no_grad()
    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Return the outputs of the averaged model."""
        if self.module is None:
            raise TaskError("an Ema was called before the model was built", hint="call it in forward or in loss")
        return self.module(*inputs, **named)


def followers(task: object) -> dict[str, Ema]:
    """Return the attributes of a task that follow the model, by name, also those of its class."""
    kinds = [vars(kind) for kind in reversed(type(task).__mro__)]
    found = {name: value for every in [*kinds, vars(task)] for name, value in every.items()}
    return {name: value for name, value in found.items() if isinstance(value, Ema)}
