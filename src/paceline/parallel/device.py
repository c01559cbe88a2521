"""The device that a rank computes on, and the CPU threads it may use."""

import ctypes
import os

import torch

from paceline.core.errors import ConfigError
from paceline.core.units import plural
from paceline.core.world import World
from paceline.records.environment import vector_instructions

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of malloc.h: how much free memory goes back to the system, and from which size on memory comes from there alone."""
LARGEST_TRIM, LARGEST_MMAP = 2**31 - 1, 2**25
"""The most that glibc accepts."""


def choose_device(name: str, world: World) -> torch.device:
    """Return the device that a setting means: auto takes a GPU per rank where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as cause:
        raise ConfigError(f"there is no device {name}", hint="use cpu, cuda or cuda:1") from cause
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise ConfigError(f"device {name} is not supported", hint="use cpu or cuda")
    return _choose_gpu(device, world)


def _choose_gpu(device: torch.device, world: World) -> torch.device:
    if not torch.cuda.is_available():
        raise ConfigError(f"--device {device} was asked for, but torch sees no GPU", hint="use --device cpu")
    index = world.local_rank if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise ConfigError(f"there is no GPU {index}", hint=f"torch sees {plural(torch.cuda.device_count(), 'GPU')}")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def set_threads(threads: int | None, *, num_sharing: int) -> int:
    """Give this rank the threads asked for by --threads or OMP_NUM_THREADS, or else its share of the cores."""
    shared = max(1, len(cores()) // num_sharing)
    asked = os.environ.get("OMP_NUM_THREADS", "")
    number = threads or (int(asked) if asked.isdigit() and int(asked) else shared)
    torch.set_num_threads(number)
    return number


def hold_memory() -> None:
    """Keep freed memory for the next step, where the C library can.

    Activations come and go at every step. By default glibc hands much of them back to the system and the next step has
    them zeroed again page by page.
    """
    change = getattr(ctypes.CDLL(None), "mallopt", None)
    if change is not None:
        change(M_TRIM_THRESHOLD, LARGEST_TRIM)
        change(M_MMAP_THRESHOLD, LARGEST_MMAP)


def cores() -> frozenset[int]:
    """Return the cores that this process may run on."""
    return frozenset(os.sched_getaffinity(0))


def describe_threads(num_sharing: int) -> str:
    """Return how the cores of this machine are shared out: "2 ranks × 1 thread of 2 cores"."""
    ranks = f"{num_sharing} ranks × " if num_sharing > 1 else ""
    return f"{ranks}{plural(torch.get_num_threads(), 'thread')} of {plural(len(cores()), 'core')}"


def describe_device(device: torch.device, cpu: str) -> str:
    """Return the name of the device as its maker calls it."""
    return f"cpu ({cpu})" if device.type == "cpu" else f"{device} ({torch.cuda.get_device_name(device)})"


def has_fast_bf16(device: torch.device) -> bool:
    """Tell whether the device multiplies bf16 in hardware."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    vectors = vector_instructions()
    return not vectors or "avx512_bf16" in vectors or "amx_bf16" in vectors
