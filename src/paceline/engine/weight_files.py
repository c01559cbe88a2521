"""Reading what holds weights, ours or other people's, without running a line of their code."""

import argparse
import json
import pickle
from collections.abc import Mapping
from pathlib import Path, PosixPath
from typing import Any

import numpy as np
import torch
from numpy._core import multiarray

from paceline.core.errors import CheckpointError
from paceline.engine.checkpoint import Checkpoints, load_checkpoint
from paceline.engine.safetensors import read_safetensors
from paceline.records.folder import find_run

SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".tar", ".safetensors", ".json")
INDEX = "*.index.json"
WHOLE = ("model.safetensors", "pytorch_model.bin")
NUMPY = [np.dtype, multiarray.scalar, *(type(np.dtype(kind)) for kind in "?bhilqBHILQefd")]
HARMLESS = [argparse.Namespace, PosixPath, *NUMPY]
"""What training scripts put beside weights and what cannot do harm: settings, paths, numpy's numbers."""


def locate(path: Path, *, runs_dir: Path, checkpoint: str) -> Path:
    """Return the file, or the index of files, that a user means by a run, a checkpoint, a file or a folder."""
    if path.is_file() and path.name in {"best", "last"}:
        return Checkpoints(path.parent, keep=1).named(path.name)
    if path.is_file():
        return path
    if not path.exists() and path.suffix in SUFFIXES:
        raise CheckpointError(f"{path} does not exist")
    if (path / ".metadata").is_file():
        raise CheckpointError(
            f"{path} is a sharded checkpoint of torch.distributed.checkpoint",
            hint=f"make it one file: python -m torch.distributed.checkpoint.format_utils dcp_to_torch {path} FILE.pt",
        )
    found = [*sorted(path.glob(INDEX)), *(path / name for name in WHOLE if (path / name).is_file())]
    if found:
        return found[0]
    return Checkpoints(find_run(path, runs_dir).checkpoints, keep=1).named(checkpoint)


def read_file(path: Path) -> Any:
    """Return what a file holds; tensors stay on disk until they are looked at, where the format allows."""
    if path.name.endswith(".index.json"):
        return _read_shards(path)
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    if path.with_suffix(".json").is_file() and path.name.startswith("step-"):
        return load_checkpoint(path, mapped=True)
    return _read_torch(path)


def _read_torch(path: Path) -> Any:
    with path.open("rb") as file:
        zipped = file.read(4) == b"PK\x03\x04"  # older files cannot be mapped
    try:
        with torch.serialization.safe_globals(HARMLESS):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except pickle.UnpicklingError as cause:
        if "Unsupported global" not in str(cause) and "Unsupported class" not in str(cause):
            raise CheckpointError(f"{path} is not a file of torch.save, or is damaged") from cause
        what = str(cause).partition("GLOBAL ")[2].split(" ")[0] or "Python objects"
        raise CheckpointError(
            f"{path} holds code, not only tensors ({what}); Paceline runs no code of a file",
            hint="save model.state_dict() instead of the model, with the script that made the file",
        ) from cause
    except (RuntimeError, EOFError, ValueError, KeyError, AttributeError, IndexError) as cause:
        raise CheckpointError(f"{path} is not a file of torch.save, or is damaged") from cause


def _read_shards(index: Path) -> Mapping[str, Any]:
    """Return the tensors of all files that an index names."""
    try:
        places: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (ValueError, KeyError, TypeError) as cause:
        raise CheckpointError(f"{index} is not an index of weights: it has no weight_map") from cause
    found: dict[str, Any] = {}
    for name in sorted(set(places.values())):
        shard = index.parent / Path(name).name
        if not shard.is_file():
            raise CheckpointError(f"{index} names {name}, which is not there")
        found |= read_file(shard)
    absent = [name for name in places if name not in found]
    if absent:
        raise CheckpointError(f"{index} names {absent[0]}, which none of its files holds")
    return {name: found[name] for name in places}
