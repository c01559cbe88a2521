"""`paceline models`: list the built-in models, and how to name others."""

import json
from typing import Annotated, Any

from cyclopts import Parameter

from paceline.core.errors import ExitCode
from paceline.core.units import count, fitted_table, large

OTHERS = """\
also: --model timm:NAME, torchvision:NAME (pip install 'paceline[vision]'), hf:FOLDER (pip install transformers),
or your own function as my.py:build
FLOPs are those of the forward pass of one sample; a multiply-add counts as two"""


def models_command(*, as_json: Annotated[bool, Parameter(name="--json", negative="")] = False) -> int:
    """List the built-in models with their parameters and FLOPs per sample.

    Every model supports any number of channels and classes, or any vocabulary; the figures are for the input shown.

    Parameters
    ----------
    as_json
        Print one JSON object per model.
    """
    rows = [_row(name) for name in _names()]
    if as_json:
        for row in rows:
            print(json.dumps(row))
        return ExitCode.FINISHED
    print(fitted_table(["model", "parameters", "input", "classes", "FLOPs"], [_cells(row) for row in rows]))
    print(f"\n{OTHERS}")
    return ExitCode.FINISHED


def _names() -> list[str]:
    from paceline.models.zoo import list_models

    return list_models()


def _row(name: str) -> dict[str, Any]:
    """Return the figures of a model, built on the meta device: shapes without data, so this is quick."""
    import torch

    from paceline.models.summary import forward_flops
    from paceline.models.zoo import build_model, usual_facts

    facts = usual_facts(name)
    with torch.device("meta"):
        model = build_model(name, **facts)
    return {
        "model": name,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        **{fact: list(value) if isinstance(value, tuple) else value for fact, value in facts.items()},
        "flops": forward_flops(model, facts),
    }


def _cells(row: dict[str, Any]) -> list[str]:
    if "context" in row:
        shape, outputs = f"{count(row['context'])} tokens", row["vocab_size"]
    else:
        channels, height, width = row["image_shape"]
        shape, outputs = f"{height}×{width}×{channels}", row["num_classes"]
    return [row["model"], count(row["parameters"]), shape, count(outputs), large(row["flops"])]
