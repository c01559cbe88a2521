"""Buffers over ranks: what each rank's batch norm saw becomes the same on all of them."""

import torch
import torch.distributed as dist
from torch import Tensor, nn

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


def _fill(buffers: list[Tensor], flat: Tensor) -> None:
    for buffer, part in zip(buffers, flat.split([buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(part.view(buffer.shape))


class GhostBuffers:
    """Buffers of ghost batch norm: each shard of a batch starts from the same ones, and their changes are averaged.

        buffers.start(model)
        for each shard:  buffers.reset(); forward; buffers.collect(weight)
        buffers.finish(team)

    The weights of all shards of all ranks add up to one, so a counter that every shard advances by one does so once.
    Sums are in fp64: how shards are spread over ranks changes at most the last bit.
    """

    def __init__(self) -> None:
        self.buffers: list[Tensor] = []
        self.before = torch.empty(0)
        self.change = torch.empty(0)

    def start(self, model: nn.Module) -> None:
        """Remember the buffers as they are before a step."""
        self.buffers = [buffer for buffer in model.buffers() if buffer.numel() > 0]
        self.before = self._values()
        self.change = torch.zeros_like(self.before)

    def reset(self) -> None:
        """Put back the buffers as they were, before a shard."""
        self._set(self.before)

    def collect(self, weight: float) -> None:
        """Add the changes that a shard made, by its share of the batch."""
        # A constant may be infinite, as in a mask; its change is nothing, not a difference of infinities.
        values = self._values()
        self.change += torch.where(values == self.before, 0.0, weight * (values - self.before))

    def finish(self, team: Team) -> None:
        """Apply the changes of all shards on all ranks. Collective: every rank calls it, also one without shards."""
        if not self.buffers:
            return
        if team.world.size > 1:
            dist.all_reduce(self.change)
        self._set(self.before + self.change)

    def _values(self) -> Tensor:
        if not self.buffers:
            return torch.empty(0)
        return torch.cat([buffer.detach().flatten().double() for buffer in self.buffers])

    def _set(self, flat: Tensor) -> None:
        sizes = [buffer.numel() for buffer in self.buffers]
        for buffer, part in zip(self.buffers, flat.split(sizes), strict=True):
            values = part if buffer.is_floating_point() else part.round()
            buffer.copy_(values.view(buffer.shape))
