"""The trial forward pass: two black images show whether a model fits the data; it leaves the model unchanged."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from paceline.core.errors import ModelError
from paceline.models.family import ImageShape

NUM_IMAGES = 2


def check_model(model: nn.Module, *, num_classes: int, image_shape: ImageShape, name: str) -> None:
    """Raise ModelError unless the model returns one row of `num_classes` scores per image; change nothing in it."""
    require_parameters(model, name)
    try:
        scores = trial_forward(model, NUM_IMAGES, image_shape)
    except Exception as cause:
        shape_text = "×".join(str(length) for length in image_shape)
        raise ModelError(
            f"{name} cannot take images of {shape_text} (channels × height × width): {type(cause).__name__}: {cause}",
            hint="choose a model made for this size, or build yours from in_channels, image_size and num_classes",
        ) from cause
    if not isinstance(scores, torch.Tensor):
        raise ModelError(
            f"{name} returns a {type(scores).__name__}, not one tensor of scores",
            hint=f"return the logits from forward, of shape (images, {num_classes})",
        )
    _check_shape(tuple(scores.shape), num_classes, name)


def require_parameters(model: nn.Module, name: str) -> None:
    """Raise ModelError unless the model has parameters, each with a shape."""
    parameters = dict(model.named_parameters())
    if not parameters:
        raise ModelError(f"{name} has no parameters, so there is nothing to train", hint="return a model with layers")
    for key, parameter in parameters.items():
        if is_lazy(parameter):
            raise ModelError(
                f"{name} has a lazy layer: {key} has no shape yet",
                hint="give the layer its input size; in_channels and image_size are passed to your function",
            )


def _check_shape(shape: tuple[int, ...], num_classes: int, name: str) -> None:
    if shape == (NUM_IMAGES, num_classes):
        return
    if len(shape) == 2 and shape[0] == NUM_IMAGES:
        raise ModelError(
            f"{name} returns {shape[1]} classes, the data has {num_classes}",
            hint=f"end the model with {num_classes} outputs: take num_classes as an argument, it is passed to you",
        )
    raise ModelError(
        f"{name} returns the shape {shape} for {NUM_IMAGES} images, expected {(NUM_IMAGES, num_classes)}",
        hint="return one row of scores per image; nn.Flatten() before the last layer removes extra dimensions",
    )


def trial_forward(model: nn.Module, num_images: int, image_shape: ImageShape) -> Any:
    """Return the output for black images on the model's device, in evaluation mode and without gradients.

    Training flags, buffers and random generators are restored.
    """
    images = torch.zeros(num_images, *image_shape, device=_device(model))
    with unchanged(model), torch.no_grad():
        return model.eval()(images)


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Restore training flags, buffers and random generators after a trial."""
    device = _device(model)
    cuda_devices = [device] if device.type == "cuda" else []
    with _keep_flags(model), _keep_buffers(model), torch.random.fork_rng(cuda_devices):
        yield


def _device(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


@contextmanager
def _keep_flags(model: nn.Module) -> Iterator[None]:
    """Restore the training flag of each module: some may be in evaluation mode on purpose."""
    flags = [(module, module.training) for module in model.modules()]
    try:
        yield
    finally:
        for module, training in flags:
            module.training = training


@contextmanager
def _keep_buffers(model: nn.Module) -> Iterator[None]:
    """Restore buffers that were written to or replaced; buffers on the meta device have no content."""
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
