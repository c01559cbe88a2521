"""Evidence of collectives: their order on each rank, where the script calls them, and the small values they carry."""

from typing import Any

import torch
import torch.distributed as dist
from paceline_attach import journal
from paceline_attach.callsite import callsite, callsites, library_functions
from paceline_attach.listener import Listener, progress
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from . import early

MOST_VALUES = 64


class Collectives(Listener):
    """Numbers the collectives of this process, those of DistributedDataParallel included."""

    def put(self, name: str, **facts: Any) -> None:
        """Write a collective."""
        journal.put("collective", number=early.state.serial, name=name, step=progress.steps, **facts)
        early.state.serial += 1

    def backward_starts(self, root: Any) -> None:
        """DistributedDataParallel averages gradients."""
        del root
        if any(model.require_backward_grad_sync for model in progress.wrapped_models()):
            self.put("backward of DDP", site=callsite(3), stack=callsites(3))

    def collective_starts(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note a collective with its values."""
        tensor = kwargs.get("tensor", args[0] if args else None)
        group = kwargs.get("group")
        facts: dict[str, Any] = {"values": _values(tensor)}
        if name in {"all_reduce", "reduce"}:
            index = 1 if name == "all_reduce" else 2
            operation = kwargs.get("op", args[index] if len(args) > index else dist.ReduceOp.SUM)
            facts["operation"] = str(operation).rpartition(".")[2]
        if isinstance(tensor, torch.Tensor):
            facts["dtype"] = str(tensor.dtype)
        self.put(
            name,
            site=callsite(3),
            stack=callsites(3, most=6),
            through=library_functions(3),
            is_subgroup=group is not None and group is not dist.group.WORLD,
            **facts,
        )

    def collective_ends(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the result."""
        tensor = kwargs.get("tensor", args[0] if args else None)
        if name in {"all_reduce", "reduce"} and not kwargs.get("async_op"):
            journal.put("reduced", number=early.state.serial - 1, values=_values(tensor))


def _values(tensor: Any) -> list[float] | None:
    if not isinstance(tensor, torch.Tensor) or tensor.numel() > MOST_VALUES:
        return None
    return [round(float(value), 9) for value in tensor.detach().reshape(-1).double().tolist()]


def follow(collectives: Collectives) -> None:
    """Note when DistributedDataParallel broadcasts buffers."""
    original = DistributedDataParallel._sync_buffers

    def sync_buffers(self: Any) -> None:
        collectives.put("buffers of DDP", site=callsite(3), stack=callsites(3, most=6))
        original(self)

    DistributedDataParallel._sync_buffers = sync_buffers
    enter = Join.__enter__

    def join(self: Any) -> Any:
        journal.put("join")
        return enter(self)

    Join.__enter__ = join
