"""Process groups with gloo on this machine, whatever backend and address the script asks for."""

import os
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

HERE = frozenset({"localhost", "127.0.0.1", os.uname().nodename})
PORT = "29511"


def _host(url: str) -> str:
    return url.partition("://")[2].rpartition(":")[0]


def install(note: Callable[[str], None]) -> None:
    """Rewrite the creation of process groups, and what gloo lacks."""
    _groups(note)
    _reductions()

    def nccl(*_args: Any, **_kwargs: Any) -> str:
        return "nccl"

    def yes() -> bool:
        return True

    c10d.is_nccl_available = dist.is_nccl_available = yes
    if hasattr(dist, "get_default_backend_for_device"):
        dist.get_default_backend_for_device = c10d.get_default_backend_for_device = nccl


def _groups(note: Callable[[str], None]) -> None:
    original = c10d.init_process_group

    def init_process_group(backend: Any = None, init_method: Any = None, *args: Any, **kwargs: Any) -> Any:
        if backend is None or "gloo" not in str(backend):
            note(f"backend {backend}")
            backend = "gloo"
        for name in ("device_id", "pg_options"):
            kwargs.pop(name, None)
        if str(init_method).startswith("tcp://") and _host(init_method) not in HERE:
            init_method = "env://" if "MASTER_ADDR" in os.environ else f"tcp://127.0.0.1:{PORT}"
        if init_method in {None, "env://"} and os.environ.get("MASTER_ADDR", "localhost") not in HERE:
            os.environ["MASTER_ADDR"] = "127.0.0.1"
        return original(backend, init_method, *args, **kwargs)

    c10d.init_process_group = dist.init_process_group = init_process_group


def _reductions() -> None:
    barrier, all_reduce = c10d.barrier, c10d.all_reduce

    def plain_barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> Any:
        del device_ids
        return barrier(group, async_op)

    def averaging_all_reduce(
        tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
    ) -> Any:
        if op != dist.ReduceOp.AVG:
            return all_reduce(tensor, op, group, async_op)
        all_reduce(tensor, dist.ReduceOp.SUM, group, False)
        tensor.div_(dist.get_world_size(group))
        return None

    c10d.barrier = dist.barrier = plain_barrier
    c10d.all_reduce = dist.all_reduce = averaging_all_reduce
