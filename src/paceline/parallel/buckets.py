"""When each bucket of gradients is ready and when its average is there; or steps in which nothing is exchanged."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

Hook = Callable[[Any, GradBucket], Future[Tensor]]


class Trip(NamedTuple):
    """One bucket in one step, in seconds after the backward pass began."""

    bytes: int
    ready: float
    done: float


class BucketWatch:
    """Stands between DDP and the exchange of gradients. It costs a call of Python per bucket, so it is for profiles."""

    def __init__(self, device: torch.device) -> None:
        self.is_free = False
        """In free steps gradients stay where they are: the buckets are filled, and nothing travels."""
        self._device = device
        self._began: Any = None
        self._marks: list[list[Any]] = []

    def install(self, model: DistributedDataParallel, hook: Hook, state: Any) -> None:
        """Watch the exchange of a model, for which this hook would do the work."""
        self._hook, self._state = hook, state
        model.register_comm_hook(self, _watched)

    def begin(self) -> None:
        """Count from now on: the backward pass begins."""
        self._marks = []
        self._began = self._now()

    def trips(self) -> list[Trip]:
        """Return what the buckets of the last step did, in the order in which they were sent."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return [Trip(size, self._since(ready), self._since(done)) for size, ready, done in self._marks]

    def exchange(self, bucket: GradBucket) -> Future[Tensor]:
        """Average a bucket, or leave it as it is, and note when. Collective unless the step is free."""
        mark: list[Any] = [bucket.buffer().nbytes, self._now(), None]
        self._marks.append(mark)

        def note(future: Future[Tensor]) -> Tensor:
            mark[2] = self._now()
            return future.value()

        return (self._stays(bucket) if self.is_free else self._hook(self._state, bucket)).then(note)

    def _stays(self, bucket: GradBucket) -> Future[Tensor]:
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


def _watched(watch: BucketWatch, bucket: GradBucket) -> Future[Tensor]:
    return watch.exchange(bucket)
