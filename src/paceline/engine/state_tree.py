"""The state of a run as named parts: tensors by part and name, and everything else as values that JSON holds."""

import math
from collections.abc import Callable
from typing import Any

import torch

from paceline.core.errors import CheckpointError

TENSOR, ITEMS, TUPLE, FLOAT = "$tensor", "$items", "$tuple", "$float"
"""Keys that stand for a tensor, a dict with keys other than text, a tuple, and a number that JSON does not have."""

Parts = dict[str, dict[str, Any]]


def change_leaves(value: Any, kind: type | tuple[type, ...], change: Callable[[Any], Any]) -> Any:
    """Return a state with every value of a type changed."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, dict):
        return {key: change_leaves(inner, kind, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([change_leaves(inner, kind, change) for inner in value])
    return value


def split_state(state: dict[str, Any]) -> tuple[Parts, dict[str, Any]]:
    """Return the tensors of a state by part and name, and the rest for JSON, which names each tensor in its place."""
    parts: Parts = {}
    plain = {name: _plain(value, name, "", parts.setdefault(name, {})) for name, value in state.items()}
    return {name: tensors for name, tensors in parts.items() if tensors}, plain


def join_state(parts: Parts, plain: dict[str, Any]) -> dict[str, Any]:
    """Return the state from what `split_state` made of it."""
    return {name: _joined(value, parts.get(name, {})) for name, value in plain.items()}


def _plain(value: Any, part: str, path: str, tensors: dict[str, Any]) -> Any:
    if isinstance(value, torch.Tensor):
        return {TENSOR: _named(value, path or part, tensors)}
    if isinstance(value, dict) and all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: _plain(inner, part, _below(path, key), tensors) for key, inner in value.items()}
    if isinstance(value, dict):
        return {
            ITEMS: [
                [_plain(key, part, path, tensors), _plain(inner, part, _below(path, key), tensors)]
                for key, inner in value.items()
            ]
        }
    if isinstance(value, list | tuple):
        found = [_plain(inner, part, _below(path, number), tensors) for number, inner in enumerate(value)]
        return {TUPLE: found} if isinstance(value, tuple) else found
    if isinstance(value, float) and not math.isfinite(value):
        return {FLOAT: str(value)}
    if value is None or isinstance(value, str | int | float):
        return value
    raise CheckpointError(
        f"{_below(part, path)} is a {type(value).__name__}, which a checkpoint cannot hold",
        hint="return tensors, numbers, text, lists and dicts from state_dict",
    )


def _named(tensor: torch.Tensor, name: str, tensors: dict[str, Any]) -> str:
    while name in tensors:  # "a.b" below "c", and "b" below "c.a"
        name += "'"
    tensors[name] = tensor
    return name


def _below(path: str, key: Any) -> str:
    return f"{path}.{key}" if path and key != "" else f"{path}{key}"


def _joined(value: Any, tensors: dict[str, Any]) -> Any:
    if isinstance(value, list):
        return [_joined(inner, tensors) for inner in value]
    if not isinstance(value, dict):
        return value
    kind = next(iter(value), "")
    inner: Any = value.get(kind)
    special: dict[str, Callable[[], Any]] = {
        TENSOR: lambda: tensors[inner],
        FLOAT: lambda: float(inner),
        TUPLE: lambda: tuple(_joined(inner, tensors)),
        ITEMS: lambda: {_joined(key, tensors): _joined(each, tensors) for key, each in inner},
    }
    return special.get(kind, lambda: {key: _joined(each, tensors) for key, each in value.items()})()
