"""Installs the simulated device in this process, once."""

import atexit
import functools
import json
import os
from pathlib import Path
from typing import Any

import torch
from torch.utils import backend_registration

from tests.sim.entries import LOG
from tests.sim.names import NAME

REPORTS = "SIM_REPORTS"
"""A folder: a simulated process writes its entries there when it ends."""


@functools.cache
def install_device() -> None:
    """Register the device, its operations, autocast and NCCL with torch."""
    from tests.sim.autocast import register_autocast
    from tests.sim.device_module import DeviceModule
    from tests.sim.nccl import install_nccl

    backend_registration._setup_privateuseone_for_python_backend(rename=NAME, backend_module=DeviceModule())
    library = torch.library.Library("aten", "IMPL")
    _register_memory(library)
    KEPT.extend([library, register_autocast(library)])
    _patch_tensors()
    install_nccl()
    if REPORTS in os.environ:
        atexit.register(_report)


KEPT: list[torch.library.Library] = []
"""Their registrations end with them."""


def _register_memory(library: torch.library.Library) -> None:
    from tests.sim.device_tensor import SimTensor, transfer

    def empty(size: Any, *, dtype: Any = None, device: Any = None, memory_format: Any = None, **_: Any) -> SimTensor:
        return SimTensor(torch.empty(size, dtype=dtype, memory_format=memory_format), device.index or 0)

    def empty_strided(size: Any, stride: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> SimTensor:
        return SimTensor(torch.empty_strided(size, stride, dtype=dtype), device.index or 0)

    def copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
        transfer(target, source, non_blocking=non_blocking)
        plain = [tensor.host if isinstance(tensor, SimTensor) else tensor for tensor in (source, target)]
        plain[1].copy_(plain[0])
        return target

    library.impl("empty.memory_format", empty, "PrivateUse1")
    library.impl("empty_strided", empty_strided, "PrivateUse1")
    library.impl("_copy_from", copy_from, "PrivateUse1")


def _patch_tensors() -> None:
    """Replace what torch offers no registration for."""
    from tests.sim.memory import MAIN, STREAMS, is_pinned, pin_memory

    tensor: Any = torch.Tensor
    tensor.pin_memory, tensor.is_pinned = pin_memory, is_pinned
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    backward = tensor.backward

    def joined_backward(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        backward(self, *args, **kwargs)
        STREAMS.wait_for_all(MAIN)

    tensor.backward = joined_backward


def _report() -> None:
    Path(os.environ[REPORTS], f"{os.getpid()}.json").write_text(json.dumps(LOG.take()), encoding="utf-8")
