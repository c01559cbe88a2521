"""A forward pass that leaves no trace: training flags, buffers and random generators are as they were."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from paceline.models.family import ImageShape


def trial_forward(model: nn.Module, num_images: int, image_shape: ImageShape) -> Any:
    """Return what the model, in evaluation mode and without gradients, makes of black images on its own device."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    images = torch.zeros(num_images, *image_shape, device=device)
    cuda_devices = [device] if device.type == "cuda" else []
    with _flags_kept(model), _buffers_kept(model), torch.random.fork_rng(cuda_devices), torch.no_grad():
        return model.eval()(images)


@contextmanager
def _flags_kept(model: nn.Module) -> Iterator[None]:
    """Put each module's own flag back: some parts of a model may be in evaluation mode on purpose."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in flags:
            module.training = training


@contextmanager
def _buffers_kept(model: nn.Module) -> Iterator[None]:
    """Put back buffers that were written to or replaced; those of a meta model have no content to keep."""
    kept = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:
        for module, name, buffer, before in kept:
            setattr(module, name, buffer)
            # An expanded buffer cannot be written to, so write only what has changed.
            if not buffer.is_meta and not torch.equal(buffer, before):
                buffer.data.copy_(before)
