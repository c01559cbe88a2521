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
