"""Buffers over ranks: averaging them, and the context of a step that does so shard by shard."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.parallel.batchnorm import SyncBatchNorm, muted
from paceline.parallel.module_state import ModuleState
from paceline.parallel.team import Team


def average_buffers(model: nn.Module, team: Team) -> None:
    """Average the floating-point buffers over all ranks, and copy rank 0's other buffers. Collective.

    The mean is computed in fp64, so that a buffer that is equal on all ranks keeps its exact bits.
    """
    if team.world.size == 1:
        return
    floating = [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    others = [buffer for buffer in model.buffers() if not buffer.is_floating_point()]
    if floating:
        flat = torch.cat([buffer.detach().flatten().double() for buffer in floating])
        dist.all_reduce(flat)
        _fill(floating, flat / team.world.size)
    if others:
        flat = torch.cat([buffer.detach().flatten().view(torch.uint8) for buffer in others])
        dist.broadcast(flat, src=0)
        for buffer, part in zip(others, flat.split([buffer.nbytes for buffer in others]), strict=True):
            buffer.copy_(part.clone().view(buffer.dtype).view(buffer.shape))


def own_buffers(model: nn.Module) -> set[str]:
    """Return the names of the buffers that each rank updates from its own samples until they are averaged."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules(remove_duplicate=False)
        if not isinstance(module, SyncBatchNorm)
        for name, _ in module.named_buffers(recurse=False)
    }


def _fill(buffers: list[Tensor], flat: Tensor) -> None:
    for buffer, part in zip(buffers, flat.split([buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(part.view(buffer.shape))


class StepContext(Protocol):
    """The context of a step, with an inner context for each micro-batch."""

    @property
    def is_exact(self) -> bool:
        """Whether the step, once the context is left, need not be computed again."""
        ...

    def micro_batch(self, weight: float, /) -> AbstractContextManager[None]:
        """Return the context of the next micro-batch; `weight` is the weight of its loss."""
        ...


class PlainStep:
    """A step that leaves the buffers to the model."""

    is_exact = True

    def __enter__(self) -> "PlainStep":
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing."""

    def micro_batch(self, _weight: float) -> AbstractContextManager[None]:
        """Run one micro-batch."""
        return NOTHING


NOTHING = nullcontext()
PLAIN_STEP = PlainStep()


class GhostStep:
    """A step of ghost batch norm: each shard starts from the same buffers, and their changes are averaged.

        with GhostStep(model, team, scale=1.0) as step:
            for each shard:
                with step.micro_batch(weight):  forward, backward

    The weights of all shards of all ranks, times `scale`, sum to 1, so a counter that every shard increments is
    incremented once. Sums are in fp64: the distribution of shards over ranks changes at most the last bit. Leaving the
    context is collective: every rank must, including one without shards.
    """

    is_exact = True

    def __init__(self, model: nn.Module, team: Team, *, scale: float) -> None:
        self._buffers = ModuleState(model)
        self._change = torch.zeros(self._buffers.size, dtype=torch.double, device=next(model.parameters()).device)
        self._team = team
        self._scale = scale

    def __enter__(self) -> "GhostStep":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._buffers.size:
            if self._team.world.size > 1:
                dist.all_reduce(self._change)
            self._buffers.apply(self._change)

    @contextmanager
    def micro_batch(self, weight: float) -> Iterator[None]:
        """Run one shard, and add its change of the buffers."""
        self._buffers.reset()
        yield
        if self._buffers.size:
            self._change += self._buffers.change(weight * self._scale)


@contextmanager
def without_statistics(model: nn.Module) -> Iterator[None]:
    """Run a forward pass of weight 0: synchronised statistics leave its samples out, other buffers are restored."""
    if any(isinstance(module, SyncBatchNorm) for module in model.modules()):
        with muted(model):
            yield
        return
    own = {module: dict(module.named_buffers(recurse=False)) for module in model.modules()}
    copies = {id(buffer): buffer.clone() for buffers in own.values() for buffer in buffers.values()}
    _set_buffers({module: {name: copies[id(buffer)] for name, buffer in own[module].items()} for module in own})
    try:
        yield
    finally:
        # not restored by copying: the backward pass refuses buffers that were written to since the forward pass
        _set_buffers(own)


def _set_buffers(buffers: Mapping[nn.Module, Mapping[str, Tensor]]) -> None:
    for module, own in buffers.items():
        for name, buffer in own.items():
            setattr(module, name, buffer)
