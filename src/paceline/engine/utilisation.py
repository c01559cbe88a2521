"""Utilisation: CPU and memory of this process, and its GPU if it has one."""

import time
from typing import Any

import psutil
import torch

SECONDS_BETWEEN_SAMPLES = 1.0


class UtilisationSampler:
    """Samples at most once a second and repeats the last sample in between."""

    def __init__(self, device: torch.device) -> None:
        self._process = psutil.Process()
        self._process.cpu_percent()  # the first call only sets the start
        self._gpu = _open_gpu(device)
        self._taken = time.perf_counter()
        self._sample: dict[str, float] = {}

    def sample(self) -> dict[str, float]:
        """Return CPU use (100 is one core), resident memory, and GPU use and memory."""
        now = time.perf_counter()
        if self._sample and now - self._taken < SECONDS_BETWEEN_SAMPLES:
            return self._sample
        self._taken = now
        with self._process.oneshot():
            self._sample = {
                "cpu_percent": self._process.cpu_percent(),
                "memory_gb": self._process.memory_info().rss / 1e9,
            }
        if self._gpu is not None:
            self._sample |= _sample_gpu(self._gpu)
        return self._sample


def _open_gpu(device: torch.device) -> Any:
    if device.type != "cuda":
        return None
    import pynvml  # noqa: PLC0415 - only where there is a GPU

    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except pynvml.NVMLError:
        return None


def _sample_gpu(handle: Any) -> dict[str, float]:
    import pynvml  # noqa: PLC0415 - as above

    try:
        use = pynvml.nvmlDeviceGetUtilizationRates(handle)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError:
        return {}
    return {"gpu_percent": float(use.gpu), "gpu_memory_gb": float(memory.used) / 1e9}
