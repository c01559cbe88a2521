"""NCCL over gloo: accepts device tensors only; its futures run callbacks on another stream."""

import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import AllgatherOptions
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from tests.sim.device_tensor import SimTensor
from tests.sim.entries import LOG
from tests.sim.memory import CALLBACKS, STREAMS
from tests.sim.names import BEFORE_FORWARD, NAME
from tests.sim.rules import NCCL_DTYPES

BACKEND = "simnccl"
NEVER_DONE = "SIM_NEVER_DONE"
"""If set, no collective is ever complete when polled, as for a host that is far ahead of its device."""
T = TypeVar("T")


class SimFuture(Future[T]):
    """A future of a collective: like CUDA's, it runs callbacks on a stream of its own and protects only its value."""

    def __init__(self, *, devices: Any = None) -> None:
        super().__init__()

    def then(self, callback: Callable[[Future[T]], Any]) -> "SimFuture[Any]":
        before, STREAMS.current = STREAMS.current, CALLBACKS
        try:
            value = callback(self)
        finally:
            STREAMS.current = before
        own = self.value()
        for tensor in own if isinstance(own, list | tuple) else [own]:
            if isinstance(tensor, SimTensor):
                tensor.block.protect(CALLBACKS)
        after: SimFuture[Any] = SimFuture()
        after.set_result(value)
        return after


class SimWork(dist.Work):
    """A collective on its way."""

    def __init__(self, work: Any, outputs: list[torch.Tensor]) -> None:
        super().__init__()
        self._work, self._outputs = work, outputs

    def wait(self, timeout: Any = None) -> bool:
        return self._work.wait()

    def is_completed(self) -> bool:
        return NEVER_DONE not in os.environ and self._work.is_completed()

    def get_future(self) -> SimFuture[Any]:
        self._work.wait()
        future: SimFuture[Any] = SimFuture()
        future.set_result(self._outputs)
        return future


ProcessGroup: Any = dist.ProcessGroup  # its types describe other overloads than those that torch calls


class SimNccl(ProcessGroup):
    """The collectives of NCCL that DDP and Paceline use."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        LOG.add("note", f"communicator of {size} ranks")
        self._gloo: Any = dist.ProcessGroupGloo(store, rank, size, timeout)
        self._rank, self._size = rank, size

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "nccl"

    def allreduce(self, tensors: Any, opts: Any = None) -> SimWork:
        return SimWork(self._gloo.allreduce(_plain(tensors), opts or dist.AllreduceOptions()), list(tensors))

    def broadcast(self, tensors: Any, opts: Any = None) -> SimWork:
        return SimWork(self._gloo.broadcast(_plain(tensors), opts or dist.BroadcastOptions()), list(tensors))

    def reduce(self, tensors: Any, opts: Any = None) -> SimWork:
        return SimWork(self._gloo.reduce(_plain(tensors), opts or dist.ReduceOptions()), list(tensors))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> SimWork:
        return SimWork(self._gloo.allgather([_plain(some) for some in outputs], _plain(inputs)), outputs[0])

    def _allgather_base(self, output: Any, inputs: Any, opts: Any = None) -> SimWork:
        work = self._gloo._allgather_base(*_plain([output, inputs]), opts or AllgatherOptions())
        return SimWork(work, [output])

    def _reduce_scatter_base(self, output: Any, inputs: Any, opts: Any = None) -> SimWork:
        work = self._gloo._reduce_scatter_base(*_plain([output, inputs]), opts or dist.ReduceScatterOptions())
        return SimWork(work, [output])

    def send(self, tensors: Any, dst: int, tag: int = 0) -> SimWork:
        return SimWork(self._gloo.send(_plain(tensors), dst, tag), list(tensors))

    def recv(self, tensors: Any, src: int, tag: int = 0) -> SimWork:
        return SimWork(self._gloo.recv(_plain(tensors), src, tag), list(tensors))

    def barrier(self, opts: Any = None) -> Any:
        return self._gloo.barrier(opts or dist.BarrierOptions())


def _plain(tensors: Any) -> list[torch.Tensor]:
    for tensor in tensors:
        if not isinstance(tensor, SimTensor):
            LOG.add("mixed", "a collective of NCCL got a host tensor")
            raise RuntimeError("No backend type associated with device type cpu")  # noqa: TRY004 - as torch
        if tensor.dtype not in NCCL_DTYPES:
            LOG.add("rule", f"NCCL does not support {tensor.dtype}")
            raise RuntimeError(f"Input tensor data type is not supported for NCCL process group: {tensor.dtype}")
    return [tensor.host for tensor in tensors]


def install_nccl() -> None:
    """Provide the backend nccl, and DDP without static_graph, which needs page-locked memory of a C++ device."""
    dist.Backend.register_backend(BACKEND, SimNccl, devices=[NAME])
    join, is_available = dist.init_process_group, dist.is_backend_available

    def init_process_group(backend: str | None = None, **options: Any) -> None:
        device_id = options.pop("device_id", None)
        LOG.add("note", f"init_process_group({backend}) {'with' if device_id is not None else 'without'} device_id")
        join(BACKEND if backend == "nccl" else backend, **options)

    dist.init_process_group = init_process_group
    dist.is_backend_available = lambda backend: backend == "nccl" or is_available(backend)
    construct = DistributedDataParallel.__init__

    def without_static_graph(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **{key: value for key, value in kwargs.items() if key != "static_graph"})

    DistributedDataParallel.__init__ = without_static_graph
    # The second one rebuilds the buckets, and for that copies a few numbers through the host.
    DistributedDataParallel._pre_forward = LOG.phased(DistributedDataParallel._pre_forward, BEFORE_FORWARD)
