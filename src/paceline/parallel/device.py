"""The device and the CPU threads of a rank."""

import ctypes
import os

import torch

from paceline.core.errors import ConfigError
from paceline.core.units import plural
from paceline.core.world import World
from paceline.records.environment import vector_instructions

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Of malloc.h: the free memory that is returned to the system, and the size from which blocks are mapped directly."""
LARGEST_TRIM, LARGEST_MMAP = 2**31 - 1, 2**25
"""The largest value that glibc accepts."""


def choose_device(name: str, world: World) -> torch.device:
    """Return the device of a setting: auto takes one GPU per rank if there are GPUs."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"  # others are used when asked for
    try:
        device = torch.device(name)
    except RuntimeError as cause:
        hint = "use cuda" if name == "gpu" else "use cpu, cuda or cuda:1"
        raise ConfigError(f"there is no device {name}", hint=hint) from cause
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        return _choose_accelerator(device, world)
    return _choose_gpu(device, world)


def _choose_accelerator(device: torch.device, world: World) -> torch.device:
    """Return an accelerator such as xpu or mps, if torch finds one and it can do what training needs."""
    found = torch.accelerator.current_accelerator()
    if found is None or found.type != device.type:
        there = "none" if found is None else f"only {found.type}"
        raise ConfigError(f"--device {device} needs an accelerator, but torch finds {there}", hint="use --device cpu")
    try:
        weights = torch.ones(2, 2, device=device, requires_grad=True)
        (weights @ weights).sum().backward()
        torch.ones(2, dtype=torch.float64, device=device).sum()  # sums of losses
    except (RuntimeError, TypeError, NotImplementedError) as cause:
        problem = str(cause).splitlines()[0]
        raise ConfigError(f"--device {device} cannot do what training needs: {problem}", hint="use cpu") from cause
    if device.index is not None or device.type == "mps":
        return device
    return torch.device(device.type, world.local_rank % max(1, torch.accelerator.device_count()))


def _choose_gpu(device: torch.device, world: World) -> torch.device:
    if not torch.cuda.is_available():
        raise ConfigError(f"--device {device} needs a GPU, but torch finds none", hint="use --device cpu")
    found = torch.cuda.device_count()
    if device.index is not None and world.local_size > 1:
        raise ConfigError(
            f"--device {device} is one GPU, but {world.local_size} ranks on this host need one each",
            hint="use --device cuda, and --devices to choose GPUs",
        )
    # A launcher may show every rank all GPUs of the host, or its own alone.
    index = world.local_rank % found if device.index is None else device.index
    if index >= found:
        raise ConfigError(f"there is no GPU {index}", hint=f"torch finds {plural(found, 'GPU')}")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def refuse_unusable_gpus(found: int) -> None:
    """Refuse to train several ranks on the CPU of a host with GPUs: the launcher may have started one per GPU."""
    if found:
        raise ConfigError(
            f"this host has {plural(found, 'GPU')}, but torch can use none",
            hint="install a CUDA build of torch, and check CUDA_VISIBLE_DEVICES; or use --device cpu",
        )


def gpu_uuid(device: torch.device) -> str | None:
    """Return the identity of a GPU, which does not depend on its index; None for a CPU, or if torch does not know."""
    if device.type != "cuda":
        return None
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else str(uuid)


def set_threads(threads: int | None, *, num_sharing: int) -> int:
    """Set the threads of this rank from --threads or OMP_NUM_THREADS, or else divide the cores evenly."""
    shared = max(1, len(cores()) // num_sharing)
    asked = os.environ.get("OMP_NUM_THREADS", "")
    number = threads or (int(asked) if asked.isdigit() and int(asked) else shared)
    torch.set_num_threads(number)
    return number


def hold_memory() -> None:
    """Keep freed memory for the next step, if the C library supports it.

    Activations are allocated and freed in every step. By default glibc returns much of that memory to the system, which
    zeroes it again page by page in the next step.
    """
    change = getattr(ctypes.CDLL(None), "mallopt", None)
    if change is not None:
        change(M_TRIM_THRESHOLD, LARGEST_TRIM)
        change(M_MMAP_THRESHOLD, LARGEST_MMAP)


def cores() -> frozenset[int]:
    """Return the cores that this process may run on."""
    return frozenset(os.sched_getaffinity(0))


def describe_threads(num_sharing: int) -> str:
    """Return how the cores of this machine are divided: "2 ranks × 1 thread of 2 cores"."""
    ranks = f"{num_sharing} ranks × " if num_sharing > 1 else ""
    return f"{ranks}{plural(torch.get_num_threads(), 'thread')} of {plural(len(cores()), 'core')}"


def describe_device(device: torch.device, cpu: str) -> str:
    """Return the device with its product name."""
    if device.type != "cuda":
        return f"cpu ({cpu})" if device.type == "cpu" else str(device)
    return f"{device} ({torch.cuda.get_device_name(device)})"


def gpu_facts(device: torch.device) -> dict[str, str]:
    """Return what the results of a GPU depend on, whichever of its kind it is: model, capability, CUDA and cuDNN."""
    major, minor = torch.cuda.get_device_capability(device)
    return {
        "device": f"{torch.cuda.get_device_name(device)}, capability {major}.{minor}",
        "CUDA": str(torch.version.cuda),
        "cuDNN": str(torch.backends.cudnn.version()),
        "TF32": str(torch.backends.cuda.matmul.allow_tf32),
    }


def gpu_versions(device: torch.device) -> dict[str, str]:
    """Return what the speed and the result of a GPU depend on, for environment.json."""
    return gpu_facts(device) | {"NCCL": ".".join(map(str, torch.cuda.nccl.version()))}  # pyright: ignore[reportAttributeAccessIssue]


def choose_kernels(device: torch.device, *, bitwise: bool) -> None:
    """Choose the kernels of a GPU. For speed, cuDNN tries its algorithms, and products of fp32 matrices use TF32.

    Torch's default is TF32 in convolutions and full fp32 in other products, which is neither fast nor exact. With
    --exact bitwise the choice must not depend on measured times, and fp32 is fp32.
    """
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = not bitwise
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = not bitwise


def describe_kernels(device: torch.device) -> str:
    """Return the choice of kernels for the header: ", TF32, cuDNN benchmark"; empty for a CPU."""
    if device.type != "cuda":
        return ""
    tf32 = "TF32" if torch.backends.cuda.matmul.allow_tf32 else "no TF32"
    return f", {tf32}, cuDNN benchmark {'on' if torch.backends.cudnn.benchmark else 'off'}"


def has_fast_bf16(device: torch.device) -> bool:
    """Tell whether the device supports bf16 in hardware."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    vectors = vector_instructions()
    return not vectors or "avx512_bf16" in vectors or "amx_bf16" in vectors
