"""The layer table: every parameter of a model with its shape and size, as text."""

from torch import nn

HEADER = ("Layer.Parameter", "Shape", "Param#")
GAP = "    "


def num_parameters(model: nn.Module) -> int:
    """Return how many numbers the model learns or could learn; a shared parameter counts once."""
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
