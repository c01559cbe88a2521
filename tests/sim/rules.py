"""Rules of CUDA that CPU kernels do not have: which operations wait, which accept host tensors, which arguments fail.

Each rule is written from torch's source: the simulator applies rules and cannot discover them.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

aten = torch.ops.aten

WAITING = frozenset(
    {
        aten._local_scalar_dense.default,
        aten.equal.default,
        aten.nonzero.default,
        aten.masked_select.default,
        aten.is_nonzero.default,
        aten._unique2.default,
        aten.allclose.default,
    }
)
"""Their result is a number or a size on the host."""
MIXING = frozenset(
    {
        aten.copy_.default,
        aten._to_copy.default,
        aten._copy_from.default,
        aten.index.Tensor,
        aten._foreach_copy_.default,
    }
)
"""They accept tensors of the host and of the device together."""
NCCL_DTYPES = frozenset(
    {
        torch.uint8,
        torch.int8,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.bool,
    }
)


def batch_norm_backward(arguments: Mapping[str, Any]) -> str | None:
    """Apply batch_norm_backward_cuda of Normalization.cu: its kernel for channel sums alone needs saved statistics."""
    inputs = arguments["input"]
    channels_last = inputs.dim() == 4 and inputs.is_contiguous(memory_format=torch.channels_last)
    if arguments["output_mask"][0] and not channels_last:
        return None
    if arguments["save_mean"] is None or arguments["save_invstd"] is None:
        return "save_mean should always be defined (INTERNAL ASSERT of batch_norm_backward_cuda)"
    return None


RULES: dict[Any, Callable[[Mapping[str, Any]], str | None]] = {
    aten.native_batch_norm_backward.default: batch_norm_backward
}


def broken_rule(func: Any, args: tuple, kwargs: dict[str, Any]) -> str | None:
    """Return which rule a call breaks, if any."""
    rule = RULES.get(func)
    if rule is None:
        return None
    names = [argument.name for argument in func._schema.arguments]
    return rule(dict(zip(names, args, strict=False)) | kwargs)
