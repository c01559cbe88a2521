"""The ranks of a run as one team. A lone rank is a team of one, so that nothing above asks whether it is alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from paceline.core.world import World

T = TypeVar("T")


class Team:
    """Collectives of a run. Each is announced: every rank must call it, in the same order."""

    def __init__(self, world: World, device: torch.device) -> None:
        self.world = world
        self.device = device

    @property
    def is_lead(self) -> bool:
        """Tell whether this is rank 0."""
        return self.world.is_lead

    def any(self, flag: bool) -> bool:  # noqa: FBT001 - the flag is the argument
        """Tell every rank whether the flag is set on one of them. Collective: every rank must call it."""
        if self.world.size == 1:
            return flag
        vote = torch.tensor([int(flag)], device=self.device)
        dist.all_reduce(vote, op=dist.ReduceOp.MAX)
        return bool(vote.item())

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in the order of ranks. Collective: every rank must call it."""
        if self.world.size == 1:
            return [value]
        values: list[Any] = [None] * self.world.size
        dist.all_gather_object(values, value)
        return values

    def from_lead(self, value: T) -> T:
        """Return the value of rank 0. Collective: every rank must call it."""
        if self.world.size == 1:
            return value
        values: list[Any] = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]


@contextmanager
def join(world: World, device: torch.device) -> Iterator[Team]:
    """Join the other ranks, and leave them when the block ends well; after a failure peers may be stuck, so just go."""
    if world.size == 1:
        yield Team(world, device)
        return
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", rank=world.rank, world_size=world.size, init_method="env://"
    )
    yield Team(world, device)
    dist.destroy_process_group()
