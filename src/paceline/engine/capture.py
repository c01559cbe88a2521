"""One checkpoint format for every mode: whole tensors under the names of the model's parameters.

Only the lead has the contents of a state to restore; `broadcast_state` gives the other ranks its names and shapes.
Tensors are sent one after the other, a few MB at a time, directly into the target memory.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from paceline.parallel.team import Team

CHUNK = 16 << 20
"""Bytes per broadcast."""


def capture_model(model: nn.Module) -> dict[str, Tensor]:
    """Return the full weights and buffers, gathered from shards by the lead. Collective if there are shards."""
    return {name: _whole(tensor) for name, tensor in model.state_dict().items()}


def capture_other_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that a state dict leaves out (`persistent=False`): a forward pass may change them too."""
    saved = model.state_dict().keys()
    return {name: buffer for name, buffer in model.named_buffers() if name not in saved}


def capture_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, dict[str, Any]]:
    """Return the optimizer state of each parameter, by name. Collective if there are shards."""
    names: dict[Any, str] = {parameter: name for name, parameter in model.named_parameters()}
    return {
        names[parameter]: {key: _whole(value) for key, value in memory.items()}
        for parameter, memory in optimizer.state.items()
    }


class Receiver:
    """Copies the lead's tensors to all ranks through one buffer, to save memory."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._buffer = torch.empty(CHUNK if team.world.size > 1 else 0, dtype=torch.uint8)

    @torch.no_grad()
    def fill(self, target: Tensor, saved: Tensor) -> None:
        """Fill a tensor of this rank, or its shard, from the lead's tensor. Collective: every rank must call it."""
        local, first = _shard(target)
        if self._team.world.size == 1:
            local.copy_(saved)
            return
        local, saved = torch.atleast_1d(local), torch.atleast_1d(saved)
        num_rows = max(1, CHUNK * len(saved) // max(1, saved.nbytes))
        for start in range(0, len(saved) if saved.numel() else 0, num_rows):
            rows = self._broadcast(saved[start : start + num_rows])
            begin, end = max(start, first), min(start + len(rows), first + len(local))
            if begin < end:
                local[begin - first : end - first].copy_(rows[begin - start : end - start])

    def _broadcast(self, rows: Tensor) -> Tensor:
        """Return the lead's rows, which the next call overwrites."""
        if rows.nbytes > len(self._buffer):
            self._buffer = torch.empty(rows.nbytes, dtype=torch.uint8)
        taken = self._buffer[: rows.nbytes]
        received = taken.view(rows.dtype).view(rows.shape)
        if self._team.is_lead:
            received.copy_(rows)
        self._team.broadcast(taken)
        return received


def broadcast_state(state: dict[str, Any], team: Team) -> dict[str, Any]:
    """Return the lead's state; elsewhere its tensors are on the meta device. Collective: every rank must call it."""
    described = team.from_lead(map_tensors(state, lambda tensor: tensor.to("meta")))
    return state if team.is_lead else described


def restore_model(model: nn.Module, state: dict[str, Tensor], team: Team) -> None:
    """Restore weights and buffers, each rank its shard. Collective: every rank must call it."""
    targets, receiver = model.state_dict(), Receiver(team)
    for name, target in targets.items():
        receiver.fill(target, state[name])
    # these are the model's own tensors, unless it has state-dict hooks, which are then run
    model.load_state_dict(targets)


def restore_other_buffers(model: nn.Module, state: dict[str, Tensor], team: Team) -> None:
    """Restore the buffers that a state dict leaves out. Collective: every rank must call it."""
    make_missing_buffers(model, state)
    receiver = Receiver(team)
    buffers = dict(model.named_buffers())
    for name, saved in state.items():
        if name in buffers and buffers[name].shape == saved.shape:
            receiver.fill(buffers[name], saved)


def make_missing_buffers(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Allocate the buffers of a checkpoint that are None in a new model: the first pass gave them a value."""
    device = next(model.parameters()).device
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():  # noqa: SLF001 - the only way to see those that are None
            saved = state.get(f"{prefix}.{name}" if prefix else name)
            if buffer is None and saved is not None:
                setattr(module, name, torch.zeros(saved.shape, dtype=saved.dtype, device=device))


def restore_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, state: dict[str, dict[str, Any]], team: Team
) -> None:
    """Restore the optimizer state, but not its settings. Collective: every rank must call it."""
    names: dict[Any, str] = {parameter: name for name, parameter in model.named_parameters()}
    groups = optimizer.state_dict()["param_groups"]
    memories, receiver = {}, Receiver(team)
    for group, numbered in zip(optimizer.param_groups, groups, strict=True):
        for parameter, number in zip(group["params"], numbered["params"], strict=True):
            memory = state.get(names[parameter])
            if memory is not None:
                memories[number] = {key: _received(value, parameter, receiver) for key, value in memory.items()}
    optimizer.load_state_dict({"state": memories, "param_groups": groups})


def receive_tensors(state: dict[str, Tensor], team: Team) -> dict[str, Tensor]:
    """Return the lead's tensors, by name. Collective: every rank must call it."""
    receiver, received = Receiver(team), {}
    for name, saved in state.items():
        received[name] = torch.empty(saved.shape, dtype=saved.dtype)
        receiver.fill(received[name], saved)
    return received


def map_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return a state with every tensor changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: map_tensors(inner, change) for key, inner in value.items()}
    return [map_tensors(inner, change) for inner in value] if isinstance(value, list) else value


def _whole(value: Any) -> Any:
    """Return the full tensor of a shard: on the lead in main memory, elsewhere its shape, so that no GPU holds all."""
    if not isinstance(value, DTensor):
        return value
    return value.full_tensor().to("cpu" if value.device_mesh.get_rank() == 0 else "meta")


def _received(value: Any, parameter: Tensor, receiver: Receiver) -> Any:
    """Return a new tensor with the contents of the lead's, with the sharding and memory layout of its parameter.

    A fused optimizer ignores strides: it reads parameter and state element by element in memory order.
    """
    if not isinstance(value, Tensor):
        return value
    if value.dim() and value.shape == parameter.shape:
        target = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False)
    else:  # a counter
        target = torch.empty(value.shape, dtype=value.dtype)
    receiver.fill(target, value)
    return target


def _shard(target: Tensor) -> tuple[Tensor, int]:
    """Return this rank's shard of a tensor, and its first row in the full tensor."""
    if not isinstance(target, DTensor):
        return target, 0
    assert target.placements == (Shard(0),), "fsdp shards rows"
    per_rank = -(-len(target) // target.device_mesh.size())
    return target.to_local(), min(len(target), target.device_mesh.get_local_rank() * per_rank)
