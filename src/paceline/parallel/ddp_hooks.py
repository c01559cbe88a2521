"""Communication hooks of DDP: averaging in 16 bits, and timing each gradient bucket for a profile."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

Compression = Literal["none", "fp16", "bf16"]
Hook = Callable[[Any, GradBucket], Future[Tensor]]

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def comm_hook(kind: Compression, world_size: int) -> tuple[Any, Hook]:
    """Return the state and the communication hook for DDP. All ranks get the same bits.

    fp16 and bf16 halve the bytes. The sum itself is of 16-bit numbers, so the error grows with the number of ranks; up
    to three it is below 2^-10 of the gradient's norm in fp16 and 2^-7 in bf16. fp16 loses gradients below 6e-8.
    """
    if kind == "none":
        return world_size, average_bucket
    return Narrowing(world_size, DTYPES[kind]), average_narrow


@dataclass(frozen=True, slots=True)
class Narrowing:
    """The number of ranks, and the type to send."""

    world_size: int
    dtype: torch.dtype


def average_bucket(world_size: int, bucket: GradBucket) -> Future[Tensor]:
    """Average a bucket over the ranks in its own type. Collective: DDP calls it on every rank in the same order."""
    whole = bucket.buffer().div_(world_size)
    return _started(whole).then(lambda _: whole)


def average_narrow(state: Narrowing, bucket: GradBucket) -> Future[Tensor]:
    """Average a bucket over the ranks in a narrower type. Collective: DDP calls it on every rank in the same order.

    Torch's hooks cast before they divide, which overflows earlier, and refuse bf16 on CPU, although gloo supports it.
    """
    whole = bucket.buffer()
    is_wider = whole.element_size() > state.dtype.itemsize
    narrow = whole.div(state.world_size).to(state.dtype if is_wider else whole.dtype)
    return _started(narrow).then(lambda _: whole.copy_(narrow))


def _started(tensor: Tensor) -> Future[Tensor]:
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    return work.get_future()


class BucketTiming(NamedTuple):
    """One bucket in one step, in seconds after the start of the backward pass."""

    bytes: int
    ready: float
    done: float


class BucketTimer:
    """A hook that wraps another one and times each bucket; for profiles, as it costs a Python call per bucket."""

    def __init__(self, device: torch.device) -> None:
        self.skips_communication = False
        """Whether buckets are filled but not averaged, to time steps without communication."""
        self._device = device
        self._began: Any = None
        self._marks: list[list[Any]] = []

    def install(self, model: DistributedDataParallel, hook: Hook, state: Any) -> None:
        """Time the buckets of a model whose gradients this hook averages."""
        self._hook, self._state = hook, state
        model.register_comm_hook(self, _average_timed)

    def begin(self) -> None:
        """Start the clock at the start of the backward pass."""
        self._marks = []
        self._began = self._now()

    def timings(self) -> list[BucketTiming]:
        """Return the buckets of the last step, in the order in which they were sent."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return [BucketTiming(size, self._since(ready), self._since(done)) for size, ready, done in self._marks]

    def average(self, bucket: GradBucket) -> Future[Tensor]:
        """Average a bucket, unless communication is skipped, and note when. Collective where it averages."""
        mark: list[Any] = [bucket.buffer().nbytes, self._now(), None]
        self._marks.append(mark)

        def note(future: Future[Tensor]) -> Tensor:
            mark[2] = self._now()
            return future.value()

        return (self._unchanged(bucket) if self.skips_communication else self._hook(self._state, bucket)).then(note)

    def _unchanged(self, bucket: GradBucket) -> Future[Tensor]:
        future: Future[Tensor] = Future(devices=[self._device] if self._device.type == "cuda" else [])
        future.set_result(bucket.buffer())
        return future

    def _now(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _since(self, moment: Any) -> float:
        return moment - self._began if self._device.type != "cuda" else self._began.elapsed_time(moment) / 1e3


def _average_timed(timer: BucketTimer, bucket: GradBucket) -> Future[Tensor]:
    return timer.average(bucket)
