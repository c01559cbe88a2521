"""Samples become a batch: equal structures are stacked leaf by leaf, or the user's own function decides."""

import dataclasses
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.core.errors import DataError
from paceline.core.plugin import load_plugin
from paceline.data.tree import Tree

Collate = Callable[[Sequence[Any]], Tree]
"""Takes the samples of a micro-batch, and returns it."""

OWN_COLLATE = "give the data set a collate: --collate my.py:pad, or a method collate(samples)"


def load_collate(name: str) -> Collate:
    """Return the user's function "my.py:pad"; what it raises becomes a DataError."""
    return explained(load_plugin(name, DataError), name)


def explained(collate: Collate, name: str) -> Collate:
    """Return a collate function whose errors name it."""
    return _Explained(collate, name)


@dataclasses.dataclass(frozen=True, slots=True)
class _Explained:
    function: Collate
    name: str

    def __call__(self, samples: Sequence[Any]) -> Tree:
        try:
            return self.function(samples)
        except Exception as cause:
            problem = f"{self.name} raised {type(cause).__name__}: {cause}"
            raise DataError(
                problem, hint="it is called with a list of samples, as the data set returns them"
            ) from cause


def stack_samples(samples: Sequence[Any], ids: Sequence[int]) -> Tree:
    """Stack samples of the same structure and size; `ids` names them in messages."""
    return _stack(list(samples), ids)


def _stack(values: list[Any], ids: Sequence[int]) -> Tree:
    first = values[0]
    _refuse_other_kinds(values, ids)
    if isinstance(first, Tensor | np.ndarray):
        return _stack_tensors([torch.as_tensor(value) for value in values], ids)
    if isinstance(first, bool | np.bool_ | Real):
        return torch.tensor(values)
    if isinstance(first, dict):
        return {key: _stack([value[key] for value in values], ids) for key in first}
    if isinstance(first, tuple | list):
        inner = [_stack([value[place] for value in values], ids) for place in range(len(first))]
        return type(first)(*inner) if hasattr(first, "_fields") else tuple(inner)
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in dataclasses.fields(first) if field.init]
        return dataclasses.replace(first, **{n: _stack([getattr(value, n) for value in values], ids) for n in names})
    return values


def _stack_tensors(tensors: list[Tensor], ids: Sequence[int]) -> Tensor:
    for index, tensor in zip(ids, tensors, strict=True):
        if tensor.shape != tensors[0].shape:
            one, other = (_size(each) for each in (tensors[0], tensor))
            raise DataError(f"items {ids[0]} and {index} have sizes {one} and {other}, which do not stack",
                            hint=OWN_COLLATE)  # fmt: skip
    return torch.stack(tensors)


def _refuse_other_kinds(values: list[Any], ids: Sequence[int]) -> None:
    """Refuse samples whose structures differ."""
    first = _structure(values[0])
    for index, value in zip(ids, values, strict=True):
        if _structure(value) != first:
            raise DataError(f"item {index} has {_structure(value)}; item {ids[0]} has {first}", hint=OWN_COLLATE)


def _structure(value: Any) -> str:
    if isinstance(value, dict):
        return f"keys {', '.join(map(str, value))}"
    if isinstance(value, tuple | list):
        return f"{len(value)} values"
    return "a number" if isinstance(value, bool | np.bool_ | Real) else f"a {type(value).__name__}"


def _size(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "one number"
