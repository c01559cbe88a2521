"""Reads weight files of Paceline and other frameworks without running code from them."""

import argparse
import json
import pickle
from collections.abc import Mapping
from pathlib import Path, PosixPath
from typing import Any

import numpy as np
import torch
from numpy._core import multiarray
from safetensors import SafetensorError, safe_open

from paceline.core.errors import CheckpointError
from paceline.engine.checkpoint import Checkpoints, open_checkpoint
from paceline.engine.saved_tensor import SavedTensor
from paceline.engine.tensor_files import TYPES
from paceline.records.folder import is_checkpoint_name
from paceline.records.manifest import has_manifest
from paceline.records.mirror import open_run

MODEL = ("model", "state_dict", "model_state_dict", "model_state", "net", "network", "weights", "params", "module")
"""Keys under which training scripts save the state of the model."""
WRAPPERS = ("module.", "_orig_mod.")
"""The prefixes of DataParallel, DistributedDataParallel and torch.compile."""
SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".tar", ".safetensors", ".json")
INDEX = "*.index.json"
WHOLE = ("model.safetensors", "pytorch_model.bin")
NUMPY = [np.dtype, multiarray.scalar, *(type(np.dtype(kind)) for kind in "?bhilqBHILQefd")]
HARMLESS = [argparse.Namespace, PosixPath, *NUMPY]
"""Harmless classes that training scripts save with weights: settings, paths, numpy's numbers."""


def locate(path: Path, *, runs_dir: Path, checkpoint: str) -> Path:
    """Return the file, or the index of files, of a run, a checkpoint, a file or a folder."""
    if path.is_file() and path.name in {"best", "last"}:
        return Checkpoints(path.parent, keep=1).named(path.name)
    if path.is_file() or (is_checkpoint_name(path.name) and has_manifest(path)):
        return path
    if not path.exists() and path.suffix in SUFFIXES:
        raise CheckpointError(f"{path} does not exist")
    if (path / ".metadata").is_file():
        raise CheckpointError(
            f"{path} is a sharded checkpoint of torch.distributed.checkpoint",
            hint=f"convert it: python -m torch.distributed.checkpoint.format_utils dcp_to_torch {path} FILE.pt",
        )
    found = [*sorted(path.glob(INDEX)), *(path / name for name in WHOLE if (path / name).is_file())]
    if found:
        return found[0]
    return Checkpoints(open_run(path, runs_dir).checkpoints, keep=1).named(checkpoint)


def read_file(path: Path) -> Any:
    """Return the contents of a file; tensors stay on disk until they are accessed, if the format allows."""
    if path.name.endswith(".index.json"):
        return _read_shards(path)
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    if is_checkpoint_name(path.name) and (path.is_dir() or path.with_suffix(".json").is_file()):
        return open_checkpoint(path)
    return _read_torch(path)


def _read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a file, which is mapped into memory."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
    except SafetensorError as cause:
        raise CheckpointError(f"{path} is not a safetensors file, or is damaged: {cause}") from cause
    for name, tensor in tensors.items():
        if tensor.dtype not in TYPES:
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise CheckpointError(f"{path}: {name} has type {dtype}, which cannot be compared")
    return tensors


def _read_torch(path: Path) -> Any:
    with path.open("rb") as file:
        zipped = file.read(4) == b"PK\x03\x04"  # older files cannot be mapped
    try:
        with torch.serialization.safe_globals(HARMLESS):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except pickle.UnpicklingError as cause:
        if "Unsupported global" not in str(cause) and "Unsupported class" not in str(cause):
            raise CheckpointError(f"{path} was not written by torch.save, or is damaged") from cause
        what = str(cause).partition("GLOBAL ")[2].split(" ")[0] or "Python objects"
        raise CheckpointError(
            f"{path} contains code, not only tensors ({what}); Paceline does not run code from files",
            hint="in the script that wrote it, save model.state_dict() instead of the model",
        ) from cause
    except (RuntimeError, EOFError, ValueError, KeyError, AttributeError, IndexError) as cause:
        raise CheckpointError(f"{path} was not written by torch.save, or is damaged") from cause


def _read_shards(index: Path) -> Mapping[str, Any]:
    """Return the tensors of all files in an index."""
    try:
        places: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, KeyError, TypeError) as cause:
        raise CheckpointError(f"{index} is not an index of weights: it has no weight_map") from cause
    found: dict[str, Any] = {}
    for name in sorted(set(places.values())):
        shard = index.parent / Path(name).name
        if not shard.is_file():
            raise CheckpointError(f"{index} lists {name}, which does not exist")
        found |= read_file(shard)
    absent = [name for name in places if name not in found]
    if absent:
        raise CheckpointError(f"{index} lists {absent[0]}, which none of its files contains")
    return {name: found[name] for name in places}


def model_key(held: Any) -> str | None:
    """Return the key of the model's state in a checkpoint; None if the file is that state itself."""
    if not isinstance(held, Mapping):
        return None
    return next((key for key in MODEL if isinstance(held.get(key), Mapping)), None)


def unwrapped(state: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Remove the prefixes of wrappers from all names, and return those prefixes too."""
    removed: list[str] = []
    for wrapper in WRAPPERS * 2:
        if state and all(name.startswith(wrapper) for name in state):
            state = {name.removeprefix(wrapper): value for name, value in state.items()}
            removed.append(wrapper)
    return state, removed


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Return the weights and buffers of a model by name; of a checkpoint of Paceline, the evaluated ones."""
    held = read_file(path)
    if isinstance(held, Mapping) and isinstance(held.get("ema"), Mapping):
        held = held["ema"]
    while (key := model_key(held)) is not None:
        held = held[key]
    if not isinstance(held, Mapping):
        raise CheckpointError(
            f"{path} holds a {type(held).__name__}, not weights by name", hint="save model.state_dict() to it"
        )
    whole = {name: value.whole() if isinstance(value, SavedTensor) else value for name, value in held.items()}
    tensors = {name: value for name, value in whole.items() if isinstance(value, torch.Tensor)}
    if not tensors:
        raise CheckpointError(f"{path} has no tensors")
    return unwrapped(tensors)[0]
