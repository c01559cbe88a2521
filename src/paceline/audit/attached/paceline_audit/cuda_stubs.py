"""The functions of torch.cuda and torch.accelerator, for a machine without a GPU: one device per rank, always idle."""

import contextlib
import os
import time
import types
from collections.abc import Callable
from typing import Any

import torch

from .settings import NUM_DEVICES

MEMORY = 1 << 34
PROPERTIES = types.SimpleNamespace(
    name="CPU in place of a GPU", total_memory=MEMORY, major=8, minor=0, multi_processor_count=1
)


class Event:
    """An event that is complete when it is recorded."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        self.moment = 0.0

    def record(self, *_args: Any) -> None:
        """Record the time."""
        self.moment = time.perf_counter()

    def elapsed_time(self, other: "Event") -> float:
        """Return the milliseconds until another event."""
        return 1e3 * (other.moment - self.moment)

    def synchronize(self) -> None:
        """Return at once."""

    def wait(self, *_args: Any) -> None:
        """Return at once."""

    def query(self) -> bool:
        """Return that it is complete."""
        return True


class Stream:
    """A stream on which nothing is ever pending."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_args, **_kwargs: None


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def _nothing() -> None:
    return None


VALUES: dict[str, Callable[[], Any]] = {
    "is_available": lambda: True,
    "device_count": lambda: NUM_DEVICES,
    "current_device": _local_rank,
    "is_initialized": lambda: True,
    "is_bf16_supported": lambda: True,
    "get_device_name": lambda: PROPERTIES.name,
    "get_device_properties": lambda: PROPERTIES,
    "get_device_capability": lambda: (8, 0),
    "memory_summary": lambda: "",
    "mem_get_info": lambda: (MEMORY, MEMORY),
    "current_stream": Stream,
    "default_stream": Stream,
    "stream": contextlib.nullcontext,
    "device": contextlib.nullcontext,
    "get_rng_state": torch.get_rng_state,
    "get_rng_state_all": list,
    "is_current_stream_capturing": lambda: False,
}
ZEROS = (
    "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "max_memory_cached",
    "utilization",
)  # fmt: skip
NOTHINGS = (
    "set_device", "synchronize", "empty_cache", "ipc_collect", "init", "manual_seed", "manual_seed_all", "seed",
    "seed_all", "reset_peak_memory_stats", "reset_max_memory_allocated", "set_stream", "set_rng_state",
    "set_rng_state_all",
)  # fmt: skip
OF_ACCELERATOR: dict[str, Callable[[], Any]] = {
    "is_available": lambda: True,
    "device_count": lambda: NUM_DEVICES,
    "current_accelerator": lambda: torch.device("cuda"),
    "current_stream": Stream,
    "current_device_index": _local_rank,
    "current_device_idx": _local_rank,
}
ACCELERATOR_NOTHINGS = ("set_stream", "empty_cache", "set_device_index", "set_device_idx", "synchronize")


def _stub(owner: Any, name: str, value: Callable[[], Any]) -> None:
    """Replace a function by one that ignores its arguments; each name gets its own function object."""

    def stub(*_args: Any, **_kwargs: Any) -> Any:
        return value()

    stub.__name__ = name
    setattr(owner, name, stub)


def install() -> None:
    """Replace the functions."""
    for name, value in VALUES.items():
        _stub(torch.cuda, name, value)
    for name in ZEROS:
        _stub(torch.cuda, name, int)
    for name in NOTHINGS:
        _stub(torch.cuda, name, _nothing)
    torch.cuda.Event, torch.cuda.Stream = Event, Stream
    if hasattr(torch, "accelerator"):
        for name, value in OF_ACCELERATOR.items():
            _stub(torch.accelerator, name, value)
        for name in ACCELERATOR_NOTHINGS:
            _stub(torch.accelerator, name, _nothing)
