"""Evidence of collectives: their order on each rank, where the script calls them, and the small values they carry."""

import functools
import inspect
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.distributed_c10d as c10d
from paceline_attach import journal
from paceline_attach.callsite import callsite, callsites, library_functions
from paceline_attach.listener import Listener, progress
from paceline_attach.seams import COLLECTIVES, guard
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from . import early
from .steps import Steps

MOST_VALUES = 64
PEER_TO_PEER = ("send", "recv", "isend", "irecv", "batch_isend_irecv")
FUNCTIONAL = ("all_reduce", "all_gather_tensor", "reduce_scatter_tensor", "broadcast", "all_to_all_single")
GROUP_AT = {
    name: list(inspect.signature(getattr(c10d, name)).parameters).index("group")
    for name in COLLECTIVES
    if "group" in inspect.signature(getattr(c10d, name, print)).parameters
}
"""The position of the argument `group`."""


class Collectives(Listener):
    """Numbers the collectives of this process, those of DistributedDataParallel included."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps

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
        index = GROUP_AT.get(name, len(args))
        group = kwargs.get("group", args[index] if index < len(args) else None)
        facts: dict[str, Any] = {"values": _values(tensor)}
        if name in {"all_reduce", "reduce"}:
            index = 1 if name == "all_reduce" else 2
            operation = kwargs.get("op", args[index] if len(args) > index else dist.ReduceOp.SUM)
            facts["operation"] = str(operation).rpartition(".")[2]
        if isinstance(tensor, torch.Tensor):
            facts |= {"dtype": str(tensor.dtype), "numel": tensor.numel()}
            facts["is_weight"] = not hasattr(tensor, "to_local") and tensor.data_ptr() in self.steps.weights
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
    for owner, names in ((dist, PEER_TO_PEER), (funcol, FUNCTIONAL)):
        for name in names:
            if hasattr(owner, name):
                setattr(owner, name, _exchanging(getattr(owner, name), name))
    enter = Join.__enter__

    def join(self: Any) -> Any:
        journal.put("join")
        return enter(self)

    Join.__enter__ = join


def _exchanging(original: Any, name: str) -> Any:
    """Return a function that notes an exchange between ranks which is no collective of c10d."""

    @functools.wraps(original)
    def exchange(*args: Any, **kwargs: Any) -> Any:
        if guard.is_outermost():
            journal.put("exchange", name=name, site=callsite(2), step=progress.steps)
        return original(*args, **kwargs)

    return exchange
