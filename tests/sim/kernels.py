"""Operations that torch chooses for a GPU but not for a CPU, computed as on a CPU, so that results can be compared."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def native_dropout(inputs: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Compute what a CPU computes without the fused kernel: the scale is rounded to the type of the inputs."""
    if train is False:
        return inputs.clone(), torch.ones_like(inputs, dtype=torch.bool)
    noise = torch.empty_like(inputs).bernoulli_(1 - p)
    kept = noise.bool()
    return inputs * noise.div_(1 - p), kept


def native_dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    return grad * mask.to(grad.dtype).mul_(scale)


KERNELS: dict[Any, Callable[..., Any]] = {
    aten.native_dropout.default: native_dropout,
    aten.native_dropout_backward.default: native_dropout_backward,
}
