"""What a model consists of: its parameters as a table, its floating-point operations, and the cost of each layer."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

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


def example_input(facts: Mapping[str, Any]) -> Tensor:
    """Return one sample of data with these facts: a black image, or a sequence of tokens."""
    if "context" in facts:
        return torch.zeros(1, facts["context"], dtype=torch.long)
    return torch.zeros(1, *facts["image_shape"])


@torch.no_grad()
def _try(model: nn.Module, facts: Mapping[str, Any]) -> None:
    was_training = model.training
    model.eval()(example_input(facts).to(next(model.parameters()).device))
    model.train(was_training)


def forward_flops(model: nn.Module, facts: Mapping[str, Any]) -> int:
    """Return the floating-point operations of one sample: convolutions and matrix products, nothing else.

    A multiplication and its addition are two operations. A model on the meta device is counted without computing.
    """
    with FlopCounterMode(display=False) as counter:
        _try(model, facts)
    return counter.get_total_flops()


def layer_costs(model: nn.Module, facts: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return parameters and multiply-accumulates per sample of each layer with parameters, in execution order."""
    costs: list[tuple[int, int]] = []

    def note(module: nn.Module, _inputs: tuple, output: Tensor) -> None:
        parameters = sum(parameter.numel() for parameter in module.parameters(recurse=False))
        weight: Any = getattr(module, "weight", None)
        is_matrix = isinstance(weight, Tensor) and weight.dim() > 1 and not isinstance(module, nn.Embedding)
        costs.append((parameters, output.numel() * weight.numel() // weight.shape[0] if is_matrix else 0))

    hooks = [
        module.register_forward_hook(note)
        for module in model.modules()
        if any(True for _ in module.parameters(recurse=False))
    ]
    _try(model, facts)
    for hook in hooks:
        hook.remove()
    return costs
