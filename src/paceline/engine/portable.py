"""One checkpoint format for every mode: whole tensors under the names of the model's parameters."""

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor


def capture_model(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights and buffers, shards put together. Collective where there are shards."""
    return {name: _whole(tensor) for name, tensor in model.state_dict().items()}


def restore_model(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Take over weights and buffers, each rank its shard."""
    targets = model.state_dict()
    if not any(isinstance(tensor, DTensor) for tensor in targets.values()):
        model.load_state_dict(state)
        return
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(_like(state[name], target))


def capture_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, dict[str, Any]]:
    """Return what the optimizer remembers of each parameter, by name. Collective where there are shards."""
    names: dict[Any, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        names[parameter]: {key: _whole(value) for key, value in memory.items()}
        for parameter, memory in optimizer.state.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, state: dict[str, dict[str, Any]]) -> None:
    """Take over the optimizer's memory; its settings come from the run's own."""
    names: dict[Any, str] = {parameter: name for name, parameter in model.named_parameters()}
    groups = optimizer.state_dict()["param_groups"]
    memories = {}
    for group, numbered in zip(optimizer.param_groups, groups, strict=True):
        for parameter, number in zip(group["params"], numbered["params"], strict=True):
            memory = state.get(names[parameter])
            if memory is not None:
                memories[number] = {key: _like(value, parameter) for key, value in memory.items()}
    optimizer.load_state_dict({"state": memories, "param_groups": groups})


def _whole(value: Any) -> Any:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _like(value: Any, target: torch.Tensor) -> Any:
    """Return a whole tensor sharded and laid out in memory as its target is; counters and the like stay as they are.

    A fused optimizer reads parameter and memory side by side, whatever their strides say.
    """
    if not isinstance(value, torch.Tensor) or value.shape != target.shape:
        return value
    if isinstance(target, DTensor):
        return distribute_tensor(value.to(target.device), target.device_mesh, target.placements)
    return torch.empty_like(target, dtype=value.dtype, requires_grad=False).copy_(value)
