"""Buffers over ranks: what each rank's batch norm saw becomes the same on all of them."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from paceline.parallel.batchnorm import SyncBatchNorm
from paceline.parallel.team import Team


def average_buffers(model: nn.Module, team: Team) -> None:
    """Give all ranks the mean of their floating buffers and rank 0's others. Collective: every rank must call it.

    The mean is taken in fp64, where a buffer that is the same everywhere stays what it is to the last bit.
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
    """Return the names of the buffers that each rank updates from its own images until they are averaged."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules(remove_duplicate=False)
        if not isinstance(module, SyncBatchNorm)
        for name, _ in module.named_buffers(recurse=False)
    }


def _fill(buffers: list[Tensor], flat: Tensor) -> None:
    for buffer, part in zip(buffers, flat.split([buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(part.view(buffer.shape))


class ShardBuffers:
    """The buffers of a model, which every shard of a batch finds as they were before the step.

    A forward pass may change a buffer in place or put another tensor in its place. Changes are in fp64; what did not
    change keeps its bits.
    """

    def __init__(self, model: nn.Module) -> None:
        self._places = [
            (module, name)
            for module in model.modules()
            for name, buffer in module.named_buffers(recurse=False)
            if buffer.numel() > 0
        ]
        self._buffers = self._current()
        self._exact = [buffer.clone() for buffer in self._buffers]
        self._counting = [place for place, buffer in enumerate(self._buffers) if not buffer.is_floating_point()]
        self.size = sum(buffer.numel() for buffer in self._buffers)
        """Numbers in all buffers together."""
        device = next(model.parameters()).device
        self._before, self._now = (torch.zeros(self.size, dtype=torch.double, device=device) for _ in range(2))
        self._before_views, self._now_views = self._split(self._before), self._split(self._now)
        self.begin()

    def begin(self) -> None:
        """Remember the buffers as they are before a step."""
        self._buffers = self._current()
        if self._buffers:
            torch._foreach_copy_(self._exact, self._buffers)
            torch._foreach_copy_(self._before_views, self._buffers)

    def reset(self) -> None:
        """Put back the buffers as they were, before a shard."""
        if self._buffers:
            torch._foreach_copy_(self._put_back(), self._exact)

    def change(self, weight: float) -> Tensor:
        """Return what a shard changed, by its share of the batch; from an infinite value, the change is from zero."""
        if self._buffers:
            torch._foreach_copy_(self._now_views, self._current())
        # A constant may be infinite, as in a mask; its change is nothing, not a difference of infinities.
        return torch.where(self._now == self._before, 0.0, weight * (self._now - self._start))

    def apply(self, change: Tensor) -> None:
        """Change the buffers, as they were before the step, by the sum over all shards."""
        if self._buffers:
            values = torch.where(change == 0, self._before, self._start + change)
            torch._foreach_copy_(self._put_back(), self._split(values))
        counts = self._split(change.round().long()) if self._counting else []
        for place in self._counting:
            self._buffers[place].copy_(self._exact[place].long() + counts[place])

    @property
    def _start(self) -> Tensor:
        return self._before.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)

    def _put_back(self) -> list[Tensor]:
        """Make the tensors that were there before the step the buffers again, and return them."""
        for (module, name), buffer in zip(self._places, self._buffers, strict=True):
            if getattr(module, name) is not buffer:
                setattr(module, name, buffer)
        return self._buffers

    def _current(self) -> list[Tensor]:
        return [getattr(module, name) for module, name in self._places]

    def _split(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split([buffer.numel() for buffer in self._buffers])
        return [part.view(buffer.shape) for part, buffer in zip(parts, self._buffers, strict=True)]


class GhostBuffers:
    """Buffers of ghost batch norm: each shard of a batch starts from the same ones, and their changes are averaged.

        buffers = GhostBuffers(model)
        for each shard:  buffers.reset(); forward; buffers.collect(weight)
        buffers.finish(team)

    The weights of all shards of all ranks add up to one, so a counter that every shard advances by one does so once.
    Sums are in fp64: how shards are spread over ranks changes at most the last bit.
    """

    def __init__(self, model: nn.Module) -> None:
        self._buffers = ShardBuffers(model)
        self._change = torch.zeros(self._buffers.size, dtype=torch.double, device=next(model.parameters()).device)

    def reset(self) -> None:
        """Put back the buffers as they were, before a shard."""
        self._buffers.reset()

    def collect(self, weight: float) -> None:
        """Add the changes that a shard made, by its share of the batch."""
        if self._buffers.size:
            self._change += self._buffers.change(weight)

    def finish(self, team: Team) -> None:
        """Apply the changes of all shards on all ranks. Collective: every rank calls it, also one without shards."""
        if self._buffers.size:
            if team.world.size > 1:
                dist.all_reduce(self._change)
            self._buffers.apply(self._change)
