"""The model of a run for other programs: weights in the layout of Hugging Face, torch.export, ONNX, and a card."""

import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from paceline.core.config import Config
from paceline.core.errors import CheckpointError, ConfigError, ModelError
from paceline.core.world import World
from paceline.data.catalog import Splits, open_data, split_data
from paceline.engine.capture import make_missing_buffers, restore_other_buffers
from paceline.engine.checkpoint import Checkpoints, load_checkpoint
from paceline.engine.model_setup import check_fit
from paceline.models.zoo import build_model
from paceline.parallel.team import Team
from paceline.records.folder import RunFolder

WEIGHTS, SETTINGS, CARD, STATE_DICT = "model.safetensors", "config.json", "README.md", "pytorch_model.bin"
PROGRAM, ONNX = "model.pt2", "model.onnx"
ANY_NUMBER = ({0: torch.export.Dim("samples")},)
"""The shape that an exported program leaves open."""
LARGEST_ONNX = 1 << 30
"""Bytes of weights in the file itself, which cannot have more than 2 GB; more lie in a file beside it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """What is exported: the weights that a run evaluates, and what a program needs to use them."""

    config: Config
    run: Path
    checkpoint: Path
    weights: Mapping[str, Tensor]
    splits: Splits
    model: nn.Module
    example: Tensor
    """Two inputs of the model."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the model was built from: num_classes, image_shape, vocab_size, ..."""
        return self.splits.facts


def read_export(folder: RunFolder, config: Config, *, checkpoint: str) -> Export:
    """Return the weights of a checkpoint, those of the moving average if there is one, and their model."""
    path = Checkpoints(folder.checkpoints, keep=1).named(checkpoint)
    state = load_checkpoint(path)
    part = "model" if state.get("ema") is None else "ema"
    weights = state[part]
    splits = split_data(open_data(config), valid_split=config.valid_split)
    model = build_model(config.model, **splits.facts)
    make_missing_buffers(model, weights)
    check_fit(model, weights, name=config.model)
    model.load_state_dict(weights)
    alone = Team(World(), torch.device("cpu"))
    restore_other_buffers(model, (state.get("buffers") or {}).get(part, {}), alone)
    batch = splits.train.fetch(np.arange(2), None)
    example = batch[:, :-1] if isinstance(batch, Tensor) else batch[0]  # tokens are also their targets
    return Export(
        config=config,
        run=folder.path,
        checkpoint=path,
        weights=weights,
        splits=splits,
        model=model.eval(),
        example=example,
    )


def write_safetensors(export: Export, folder: Path) -> Path:
    """Write the weights in the layout of Hugging Face: model.safetensors beside config.json.

    The weights of a model of Hugging Face have the names of its library, and its own config.json.
    """
    weights, settings = dict(export.weights), {"model": export.config.model, "facts": _plain(export.facts)}
    text = json.dumps(settings, indent=2)
    if export.config.model.startswith("hf:"):
        weights = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
        model: Any = export.model
        text = model.model.config.to_json_string()
    path = folder / WEIGHTS
    save_file({name: tensor.contiguous().clone() for name, tensor in weights.items()}, path, metadata={"format": "pt"})
    (folder / SETTINGS).write_text(text + "\n", encoding="utf-8")
    return path


def write_state_dict(export: Export, folder: Path) -> Path:
    """Write the weights as torch.save does."""
    torch.save(dict(export.weights), folder / STATE_DICT)
    return folder / STATE_DICT


def write_program(export: Export, folder: Path) -> Path:
    """Write the model as a program of torch.export that takes any number of samples."""
    try:
        program = torch.export.export(export.model, (export.example,), dynamic_shapes=ANY_NUMBER)
    except Exception as cause:
        raise ModelError(
            f"torch.export does not support {export.config.model}: {type(cause).__name__}: {cause}",
            hint="use --format safetensors",
        ) from cause
    torch.export.save(program, folder / PROGRAM)
    return folder / PROGRAM


def write_onnx(export: Export, folder: Path) -> Path:
    """Write the model as ONNX, where onnx and onnxscript are installed."""
    for library in ("onnx", "onnxscript"):
        try:
            importlib.import_module(library)
        except ImportError as cause:
            raise ConfigError(f"--format onnx needs {library}", hint="pip install onnx onnxscript") from cause
    path, size = folder / ONNX, sum(each.nbytes for each in export.weights.values())
    try:
        torch.onnx.export(
            export.model,
            (export.example,),
            str(path),
            dynamo=True,
            dynamic_shapes=ANY_NUMBER,
            verbose=False,
            external_data=size > LARGEST_ONNX,
            input_names=["input"],
            output_names=["output"],
        )
    except torch.onnx.errors.OnnxExporterError as cause:
        raise ModelError(
            f"ONNX does not support {export.config.model}: {type(cause).__name__}: {str(cause).splitlines()[0]}",
            hint="use --format safetensors",
        ) from cause
    return path


FORMATS: Mapping[str, Callable[[Export, Path], Path]] = {
    "safetensors": write_safetensors,
    "state-dict": write_state_dict,
    "torch-export": write_program,
    "onnx": write_onnx,
}


def write_export(export: Export, folder: Path, formats: tuple[str, ...], scores: Mapping[str, Any]) -> list[Path]:
    """Write the model in each format, and a card of how it was trained; return the files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = [FORMATS[name](export, folder) for name in formats]
        (folder / CARD).write_text(model_card(export, scores), encoding="utf-8")
    except OSError as cause:
        raise CheckpointError(f"cannot write to {folder}: {cause.strerror}", hint="choose another --out") from cause
    return [*files, folder / CARD]


def model_card(export: Export, scores: Mapping[str, Any]) -> str:
    """Return a page in Markdown: how the model was trained, its scores, and how to load it."""
    config = export.config
    settings = "\n".join(f"| `{key}` | {value} |" for key, value in config.as_dict().items())
    measured = "\n".join(f"| {name} | {value} |" for name, value in scores.items())
    facts = ", ".join(f"{name}={value!r}" for name, value in export.facts.items() if name in LOADED)
    if config.model.startswith("hf:"):
        kind = "AutoModelForCausalLM" if "vocab_size" in export.facts else "AutoModelForImageClassification"
        load = HF_LOAD.format(kind=kind)
    else:
        load = OWN_LOAD.format(model=config.model, facts=facts)
    return f"""# {config.run_name}

{config.model}, trained on {config.data} with Paceline. Weights of `{export.checkpoint.name}` of the run `{export.run}`.

## Scores

| | |
|---|---|
{measured}

## Use

```python
{load}
```

## Settings

| setting | value |
|---|---|
{settings}
"""


OWN_LOAD = f"""from paceline.models.zoo import build_model
from safetensors.torch import load_file

model = build_model("{{model}}", {{facts}})
model.load_state_dict(load_file("{WEIGHTS}"))
model.eval()"""
HF_LOAD = """from transformers import {kind}

model = {kind}.from_pretrained(".")
model.eval()"""
LOADED = ("num_classes", "num_outputs", "image_shape", "vocab_size", "context")
"""Facts of the data that built-in models are built from."""


def _plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts that JSON can hold."""
    return {name: value for name, value in facts.items() if isinstance(value, str | int | float | tuple | list)}
