"""The sections of a weight file, under names that two files can share."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.compare.contents import Contents, split_model
from paceline.compare.stored import HashedTensor, StoredTensor
from paceline.core.errors import CheckpointError
from paceline.engine.saved_tensor import SavedTensor
from paceline.engine.weight_files import locate, model_key, read_file, unwrapped

AVERAGE = ("ema", "model_ema", "state_dict_ema", "ema_state_dict")
SETTINGS = ("config", "args", "hparams", "hyper_parameters", "opt", "code", "data_digests")


def read_contents(path: Path, *, runs_dir: Path, checkpoint: str) -> Contents:
    """Return the sections of a run's checkpoint, a checkpoint file, or a weight file."""
    file = locate(path, runs_dir=runs_dir, checkpoint=checkpoint)
    try:
        held = read_file(file)
    except OSError as cause:
        raise CheckpointError(f"cannot read {file}: {cause.strerror or cause}") from cause
    parts, notes = parts_of(held)
    entries = [entry for part in parts.values() for entry in part.items()]
    if not any(isinstance(value, StoredTensor | HashedTensor) for _, value in entries):
        raise CheckpointError(f"{file} has no tensors")
    for name, value in entries:
        if isinstance(value, StoredTensor) and value.tensor.is_meta:
            raise CheckpointError(
                f"{file} has {name} without values: it was saved on torch's meta device",
                hint="save the model after its weights were loaded",
            )
    return Contents(name=str(file), parts=parts, notes=tuple(notes))


def parts_of(held: Any) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Sort the contents of a file into sections, and note removed prefixes."""
    notes: list[str] = []
    key = model_key(held)
    if key is None:
        return dict(split_model(_unwrapped(dict(_flat(held)), notes))), notes  # pyright: ignore[reportReturnType]
    model = held[key]
    while (inner := model_key(model)) is not None:
        key, model = f"{key}.{inner}", model[inner]
    parts = dict(split_model(_unwrapped(dict(_flat(model)), notes)))
    others: dict[str, Any] = {}
    for name, value in held.items():
        if name == key.partition(".")[0] or name in SETTINGS or value is None:
            continue
        if name in AVERAGE:
            parts["average"] = _unwrapped(dict(_flat(value)), [])
        elif isinstance(value, Mapping | list | tuple):
            parts[name] = dict(_flat(value))
        else:
            others |= dict(_flat({name: value}))
    parts |= {"others": others} if others else {}
    return {name: part for name, part in parts.items() if part}, notes  # pyright: ignore[reportReturnType]


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield tensors and plain values under dotted names."""
    if isinstance(value, torch.Tensor):
        yield prefix or "tensor", StoredTensor(value)
    elif isinstance(value, SavedTensor):
        yield prefix or "tensor", HashedTensor(value)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list | tuple | set):
        for place, inner in enumerate(sorted(value, key=repr) if isinstance(value, set) else value):
            yield from _flat(inner, f"{prefix}.{place}" if prefix else str(place))
    elif isinstance(value, np.generic):
        yield prefix or "value", value.item()
    else:
        is_plain = value is None or isinstance(value, int | float | str)
        yield prefix or "value", value if is_plain else repr(value)


def _unwrapped(state: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """Remove the prefixes of wrappers, and note it."""
    state, removed = unwrapped(state)
    notes += [f"removed the wrapper's prefix {prefix} of every name" for prefix in removed]
    return state
