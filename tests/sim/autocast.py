"""Autocast on the simulated device, for the operations of the built-in models.

The lists are those of CPUs, so that results can be compared to the bit. CUDA has more: it computes softmax in fp32.
"""

from collections.abc import Callable
from typing import Any

import torch

from tests.sim.names import NAME

NARROW = ("linear", "conv2d", "matmul", "mm", "bmm", "addmm")
WIDE = ("cross_entropy_loss", "nll_loss")
KEY = "AutocastPrivateUse1"


def register_autocast(library: torch.library.Library) -> torch.library.Library:
    """Register the casts; the returned library must be kept."""
    for name in NARROW:
        library.impl(name, _kernel(name, lambda: torch.get_autocast_dtype(NAME)), KEY)
    for name in WIDE:
        library.impl(name, _kernel(name, lambda: torch.float32), KEY)
    others = torch.library.Library("_", "IMPL")
    others.fallback(torch.library.fallthrough_kernel, KEY)
    return others


def _kernel(name: str, dtype: Callable[[], torch.dtype]) -> Callable[..., Any]:
    operation = getattr(torch.ops.aten, name).default
    key = torch._C._parse_dispatch_key(KEY)
    assert key is not None
    keys = torch._C.DispatchKeySet(key)

    def cast(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.device.type == NAME:
            return value.to(dtype())
        return value

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return operation(*map(cast, args), **{key: cast(value) for key, value in kwargs.items()})

    return kernel
