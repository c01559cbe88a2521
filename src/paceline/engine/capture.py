"""What a checkpoint holds of a model and its optimizer, under the names of the parameters, and how it is restored.

With fsdp every rank reads its shards. Otherwise only the lead has the contents of a state to restore; `describe_state`
gives the other ranks its names and shapes, and tensors are sent one after the other, a few MB at a time, directly into
the target memory.
"""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from paceline.core.errors import CheckpointError
from paceline.engine.saved_tensor import SavedTensor
from paceline.engine.state_tree import change_leaves
from paceline.engine.tensor_files import CHUNK, piece_of
from paceline.parallel.team import Team

Saved = Tensor | SavedTensor


def capture_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, dict[str, Any]]:
    """Return the optimizer state of each parameter, by name."""
    names: dict[Any, str] = {parameter: name for name, parameter in model.named_parameters()}
    other = next((key for key in optimizer.state if key not in names), None)
    if other is not None:
        problem = f"{type(optimizer).__name__} keeps state under {str(other)[:40]}, which is no parameter of the model"
        raise CheckpointError(problem, hint="keep it in state[parameter], or in param_groups")
    return {names[parameter]: dict(memory) for parameter, memory in optimizer.state.items()}


def optimizer_tensors(optimizers: Mapping[str, torch.optim.Optimizer], model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors that optimizers keep for parameters, by names that say so."""
    return {
        f"{name or 'optimizer'}: {key} of {parameter}": value
        for name, optimizer in optimizers.items()
        for parameter, memory in capture_optimizer(optimizer, model).items()
        for key, value in memory.items()
        if isinstance(value, Tensor)
    }


def replicated_tensors(
    model: nn.Module,
    optimizers: Mapping[str, torch.optim.Optimizer],
    averages: Mapping[str, nn.Module],
    *,
    own_buffers: Collection[str],
) -> dict[str, Tensor]:
    """Return the tensors of a model, its optimizers and its averages that must have the same bits on every rank.

    `own_buffers` are those of the model, and so of its averages, that each rank updates from its own samples.
    """
    tensors = model.state_dict() | optimizer_tensors(optimizers, model)
    own = set(own_buffers)
    for part, average in averages.items():
        tensors |= {f"{part}: {name}": value for name, value in average.state_dict().items()}
        own |= {f"{part}: {name}" for name in own_buffers}
    return {name: tensor for name, tensor in tensors.items() if name not in own}


def capture_other_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that a state dict leaves out (`persistent=False`): a forward pass may change them too."""
    saved = model.state_dict().keys()
    return {name: buffer for name, buffer in model.named_buffers() if name not in saved}


class Receiver:
    """Copies the lead's tensors to all ranks through one buffer, to save memory."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self._buffer = torch.empty(CHUNK if team.world.size > 1 else 0, dtype=torch.uint8)

    @torch.no_grad()
    def fill(self, target: Tensor, saved: Saved) -> None:
        """Fill a tensor of this rank, or its shard, from the lead's tensor. Collective: every rank must call it.

        A team of one fills its shard from a tensor that it reads itself.
        """
        own = piece_of(target)
        local, first = torch.atleast_1d(own.local), own.first
        saved = torch.atleast_1d(saved) if isinstance(saved, Tensor) else saved
        is_alone = self._team.world.size == 1
        needed = range(first, first + len(local)) if is_alone else range(len(saved))
        num_rows = max(1, CHUNK * len(saved) // max(1, saved.nbytes))
        for start in needed[::num_rows] if saved.numel() else ():
            rows = saved[start : min(needed.stop, start + num_rows)]
            rows = rows if is_alone else self._broadcast(rows)
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


def describe_state(state: dict[str, Any], team: Team) -> dict[str, Any]:
    """Return the lead's state; elsewhere its tensors have no contents. Collective: every rank must call it."""
    described = change_leaves(state, SavedTensor, SavedTensor.described)
    described = team.from_lead(change_leaves(described, Tensor, lambda tensor: tensor.to("meta")))
    return state if team.is_lead else described


def restore_model(model: nn.Module, state: Mapping[str, Saved], team: Team) -> None:
    """Restore the weights and buffers of a state, each rank its shard. Collective: every rank must call it."""
    targets, receiver = model.state_dict(), Receiver(team)
    for name, saved in state.items():
        receiver.fill(targets[name], saved)
    # these are the model's own tensors, unless it has state-dict hooks, which are then run
    model.load_state_dict(targets)


def restore_other_buffers(model: nn.Module, state: Mapping[str, Saved], team: Team) -> None:
    """Restore the buffers that a state dict leaves out. Collective: every rank must call it."""
    make_missing_buffers(model, state)
    receiver = Receiver(team)
    buffers = dict(model.named_buffers())
    for name, saved in state.items():
        if name in buffers and buffers[name].shape == saved.shape:
            receiver.fill(buffers[name], saved)


def make_missing_buffers(model: nn.Module, state: Mapping[str, Saved]) -> None:
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


def restore_groups(optimizer: torch.optim.Optimizer, saved: list[dict[str, Any]], team: Team) -> None:
    """Restore what the groups of an optimizer hold besides parameters. Collective: every rank must call it."""
    receiver = Receiver(team)
    for group, values in zip(optimizer.param_groups, saved, strict=True):
        for key, value in values.items():
            if isinstance(value, Saved):
                group[key] = torch.empty(value.shape, dtype=value.dtype)
                receiver.fill(group[key], value)
            else:
                group[key] = value


def receive_tensors(state: Mapping[str, Saved], team: Team) -> dict[str, Tensor]:
    """Return the lead's tensors, by name. Collective: every rank must call it."""
    receiver, received = Receiver(team), {}
    for name, saved in state.items():
        received[name] = torch.empty(saved.shape, dtype=saved.dtype)
        receiver.fill(received[name], saved)
    return received


def _received(value: Any, parameter: Tensor, receiver: Receiver) -> Any:
    """Return a new tensor with the contents of the lead's, with the sharding and memory layout of its parameter.

    A fused optimizer ignores strides: it reads parameter and state element by element in memory order.
    """
    if not isinstance(value, Saved):
        return value
    if value.dim() and value.shape == parameter.shape:
        target = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False)
    else:  # a counter
        target = torch.empty(value.shape, dtype=value.dtype)
    receiver.fill(target, value)
    return target
