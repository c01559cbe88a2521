"""What a model consists of: its parameters as a table, its floating-point operations, and the cost of each layer."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from paceline.models.check import trial_forward
from paceline.models.family import ImageShape

HEADER = ("Layer.Parameter", "Shape", "Param#")
GAP = "    "


def num_parameters(model: nn.Module) -> int:
    """Return the number of parameter elements, frozen ones included; a shared parameter counts once."""
    return sum(parameter.numel() for parameter in model.parameters())


def layer_table(model: nn.Module) -> str:
    """Return one right-aligned row per parameter between rules, and the total."""
    rows = [
        (name, str(list(parameter.shape)), f"{parameter.numel():,}") for name, parameter in model.named_parameters()
    ]
    widths = [max(len(cell) for cell in column) for column in zip(HEADER, *rows, strict=True)]
    rule = "-" * (sum(widths) + len(GAP) * (len(widths) + 1))
    body = [_row(row, widths) for row in rows]
    return "\n".join([rule, _row(HEADER, widths), rule, *body, rule, "", f"Total params: {num_parameters(model):,}"])


def _row(cells: tuple[str, ...], widths: list[int]) -> str:
    return "".join(GAP + cell.rjust(width) for cell, width in zip(cells, widths, strict=True))


def forward_flops(model: nn.Module, image_shape: ImageShape) -> int:
    """Return the floating-point operations of one image: convolutions and matrix products, nothing else.

    A multiplication and its addition are two operations. A model on the meta device is counted without computing.
    """
    with FlopCounterMode(display=False) as counter:
        trial_forward(model, 1, image_shape)
    return counter.get_total_flops()


def layer_costs(model: nn.Module, image_shape: ImageShape) -> list[tuple[int, int]]:
    """Return parameters and multiply-accumulates per image of each layer with parameters, in execution order."""
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
