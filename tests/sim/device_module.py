"""`torch.gpusim`, in the place of `torch.cuda`."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from tests.sim.devices import DEVICES
from tests.sim.entries import LOG
from tests.sim.memory import CALLBACKS, MAIN, STREAMS


class Event:
    """An event. The device has always finished: its clock is that of the host."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self._has_time = enable_timing
        self._moment: float | None = None

    def record(self, *_: Any) -> None:
        self._moment = time.perf_counter()

    def synchronize(self) -> None:
        LOG.add("sync", "Event.synchronize")

    def query(self) -> bool:
        return True

    def wait(self, stream: "Stream | None" = None) -> None:
        STREAMS.wait_for_all(STREAMS.current if stream is None else stream.number)

    def elapsed_time(self, later: "Event") -> float:
        if not (self._has_time and later._has_time) or self._moment is None or later._moment is None:
            raise RuntimeError("both events must be recorded, with timing enabled")
        return 1e3 * (later._moment - self._moment)


class Stream:
    """A stream by number; a new one is a side stream."""

    def __init__(self, *_: Any, number: int = CALLBACKS + 1) -> None:
        self.number = number

    def synchronize(self) -> None:
        LOG.add("sync", "Stream.synchronize")

    def wait_stream(self, other: "Stream") -> None:
        STREAMS.wait(self.number, other.number)

    def wait_event(self, event: Event) -> None:
        event.wait(self)


class DeviceModule:
    """The functions of torch.cuda that Paceline and torch call."""

    Event, Stream = Event, Stream
    OutOfMemoryError = torch.OutOfMemoryError
    nccl = SimpleNamespace(version=lambda: (2, 27, 7))

    def is_available(self) -> bool:
        return bool(DEVICES.visible())

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return len(DEVICES.visible())

    def current_device(self) -> int:
        return DEVICES.current

    def set_device(self, device: Any) -> None:
        index = device if isinstance(device, int) else DEVICES.index(torch.device(device))
        if index >= self.device_count():
            raise RuntimeError(f"CUDA error: invalid device ordinal {index}")
        DEVICES.current = index
        torch.autograd.set_multithreading_enabled(index == 0)  # the registration has one device thread, for device 0

    def get_device_name(self, _device: Any = None) -> str:
        return "Simulated GPU"

    def get_device_capability(self, _device: Any = None) -> tuple[int, int]:
        return 8, 0

    def get_device_properties(self, device: Any = None) -> Any:
        index = device if isinstance(device, int) else DEVICES.index(torch.device(device))
        return SimpleNamespace(name="Simulated GPU", total_memory=16 << 30, uuid=f"sim-{DEVICES.visible()[index]}")

    def is_bf16_supported(self, *, including_emulation: bool = True) -> bool:
        return including_emulation or True

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def synchronize(self, *_: Any) -> None:
        LOG.add("sync", "torch.cuda.synchronize")

    def current_stream(self, _device: Any = None) -> Any:
        return Stream(number=STREAMS.current)

    def default_stream(self, _device: Any = None) -> Any:
        return Stream(number=MAIN)

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, STREAMS.current = STREAMS.current, stream.number
        try:
            yield
        finally:
            STREAMS.current = before

    def manual_seed(self, seed: int) -> None:
        DEVICES.generators[DEVICES.current].manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        for generator in DEVICES.generators:
            generator.manual_seed(seed)

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return DEVICES.generators[DEVICES.index(torch.device(device))].get_state()

    def set_rng_state(self, new_state: torch.Tensor, device: Any = None) -> None:
        DEVICES.generators[DEVICES.index(torch.device(device))].set_state(new_state)

    def empty_cache(self) -> None:
        """There is no cache."""

    def memory_allocated(self, _device: Any = None) -> int:
        return 0

    max_memory_allocated = memory_allocated

    def reset_peak_memory_stats(self, _device: Any = None) -> None:
        """Memory is not measured."""
