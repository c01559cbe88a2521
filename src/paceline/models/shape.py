"""How parameters and arithmetic are spread over the layers of a model, in the order in which they run."""

from typing import Any

import torch
from torch import Tensor, nn

from paceline.models.family import ImageShape
from paceline.models.trial import trial_forward


def layer_costs(model: nn.Module, image_shape: ImageShape) -> list[tuple[int, int]]:
    """Return parameters and multiply-accumulates of one image for each layer that has parameters of its own."""
    costs: list[tuple[int, int]] = []

    def note(module: nn.Module, _inputs: tuple, output: Tensor) -> None:
        parameters = sum(parameter.numel() for parameter in module.parameters(recurse=False))
        weight: Any = getattr(module, "weight", None)
        is_matrix = isinstance(weight, Tensor) and weight.dim() > 1 and isinstance(output, Tensor)
        costs.append((parameters, output.numel() * weight.numel() // weight.shape[0] if is_matrix else 0))

    hooks = [
        module.register_forward_hook(note)
        for module in model.modules()
        if any(True for _ in module.parameters(recurse=False))
    ]
    with torch.no_grad():
        trial_forward(model, 1, image_shape)
    for hook in hooks:
        hook.remove()
    return costs
