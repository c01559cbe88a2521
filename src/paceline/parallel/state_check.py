"""Finds out what a model's forward pass changes, and refuses what would make a bitwise result depend on the ranks."""

import pickle
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from paceline.core.errors import ModelError
from paceline.parallel.module_state import ModuleState, Place, Snapshot, weights_changed
from paceline.parallel.replicas import short_hash


@dataclass(frozen=True, slots=True)
class ChangingState:
    """What forward passes change besides buffers that hold a value: frozen parameters, and buffers that are None."""

    frozen: list[Place]
    late: dict[Place, Tensor]
    """An example of the value that such a buffer gets."""

    def of(self, model: nn.Module) -> ModuleState:
        """Return the state of the model with these."""
        return ModuleState(model, frozen=self.frozen, late=self.late)


def find_changing_state(model: nn.Module, compute: Callable[[int], None], *, name: str) -> ChangingState:
    """Find the state that forward passes change, and refuse what a reset before every shard cannot restore.

    `compute` runs a forward and a backward pass on shard 0 or 1. Shard 1 must give the same gradient before and after
    shard 0, and what modules hold besides tensors must not change from pass to pass.
    """
    was_training = model.training
    model.train()
    before = Snapshot(model, with_frozen=True)
    trained = _hashes(model, trained=True)
    seen, gradients, late = [], [], {}
    for shard in (1, 0, 1):
        compute(shard)
        _refuse_sparse_gradients(model)
        gradients.append({each: short_hash(p.grad) for each, p in model.named_parameters() if p.grad is not None})
        seen.append(list(_attributes(model)))
        late |= {place: getattr(*place) for place in before.empty if getattr(*place) is not None}
        changed = [place for place, value in before.frozen.items() if short_hash(getattr(*place)) != short_hash(value)]
        model.zero_grad(set_to_none=True)
        before.restore()
    _refuse_changed_weights(trained, _hashes(model, trained=True))
    _refuse_changed_attributes(seen)
    if gradients[0] != gradients[2]:
        raise ModelError(
            f"{name} gives a different gradient for the same samples after it has seen others",
            hint="keep what it remembers in buffers (register_buffer), and draw random numbers from torch, numpy or "
            "random, which Paceline seeds for every shard; or use --exact order",
        )
    model.train(was_training)
    return ChangingState(changed, late)


def _refuse_sparse_gradients(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and parameter.grad.is_sparse:
            raise ModelError(
                f"the gradient of {name} is sparse; --exact bitwise adds dense gradients",
                hint="use sparse=False in the module that holds it, or --exact order",
            )


def _hashes(model: nn.Module, *, trained: bool) -> dict[str, int]:
    return {name: short_hash(p) for name, p in model.named_parameters() if p.requires_grad == trained}


def _refuse_changed_weights(before: dict[str, int], after: dict[str, int]) -> None:
    for name, value in before.items():
        if value != after[name]:
            raise weights_changed(name)


def _refuse_changed_attributes(seen: Sequence[Sequence[tuple[str, Any]]]) -> None:
    """Refuse attributes that still change in the second and third pass; a cache that was filled by the first may."""
    first, second, third = (dict(attributes) for attributes in seen)
    for name in first.keys() | second.keys() | third.keys():
        if not first.get(name) == second.get(name) == third.get(name):
            raise ModelError(
                f"the forward pass changes {name}, which is neither a parameter nor a buffer, so the result would "
                "depend on which rank sees which samples",
                hint="make it a buffer with register_buffer, or use --exact order",
            )


OWN_ATTRIBUTES = frozenset(vars(nn.Module()))
DEEPEST = 3


def _attributes(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield what modules hold besides parameters, buffers and modules, by name, in a form that can be compared."""
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in OWN_ATTRIBUTES:
                yield f"{prefix}.{name}" if prefix else name, _comparable(value, 0)


def _comparable(value: Any, depth: int) -> Any:
    """Return a value that is equal to another one if the two mean the same; unknown objects count by identity."""
    if isinstance(value, Tensor | torch.Generator):
        return short_hash(value if isinstance(value, Tensor) else value.get_state())
    if value is None or isinstance(value, str | bytes | int | float | complex):
        return repr(value)
    if isinstance(value, np.ndarray | np.random.Generator | np.random.RandomState | random.Random):
        return pickle.dumps(value)
    inner = _contents(value)
    if inner is None or depth == DEEPEST:
        return id(value)
    return [_comparable(each, depth + 1) for each in inner]


def _contents(value: Any) -> list[Any] | None:
    """Return what a container or an object holds; None for a module and where nothing is known."""
    if isinstance(value, nn.Module):
        return None
    if isinstance(value, list | tuple | set | frozenset | deque):
        return list(value)
    mapping = value if isinstance(value, dict) else getattr(value, "__dict__", None)
    return None if mapping is None else [*map(repr, mapping), *mapping.values()]
