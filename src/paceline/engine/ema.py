"""A moving average of the weights, which is evaluated in place of the weights themselves."""

import copy

import torch
from torch import nn


class Ema:
    """A copy of the model that follows it; early on it follows faster, so that it forgets the random start."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(requires_grad=False)
        self._decay = decay
        pairs = list(zip(self.model.state_dict().values(), model.state_dict().values(), strict=True))
        self._averaged = [(mine, theirs) for mine, theirs in pairs if mine.is_floating_point()]
        self._copied = [(mine, theirs) for mine, theirs in pairs if not mine.is_floating_point()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the model after the step-th step."""
        decay = min(self._decay, (1 + step) / (10 + step))
        mine, theirs = [pair[0] for pair in self._averaged], [pair[1] for pair in self._averaged]
        torch._foreach_lerp_(mine, theirs, 1 - decay)
        for counter, source in self._copied:
            counter.copy_(source)
