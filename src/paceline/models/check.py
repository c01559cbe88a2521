"""The trial run: two black images tell whether a model fits the data before any rank starts to train."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from paceline.core.errors import ModelError
from paceline.models.family import ImageShape

NUM_IMAGES = 2


def check_model(model: nn.Module, *, num_classes: int, image_shape: ImageShape, name: str) -> None:
    """Raise ModelError unless the model gives one row of `num_classes` scores per image; change nothing in it."""
    device = _check_parameters(model, name)
    images = torch.zeros(NUM_IMAGES, *image_shape, device=device)
    shape_text = "×".join(str(length) for length in image_shape)
    try:
        with _untouched(model, device), torch.no_grad():
            scores = model.eval()(images)
    except Exception as cause:
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


def _check_parameters(model: nn.Module, name: str) -> torch.device:
    """Return where the parameters are, after making sure that there are some and that they have a shape."""
    parameters = dict(model.named_parameters())
    if not parameters:
        raise ModelError(f"{name} has no parameters, so there is nothing to train", hint="return a model with layers")
    for key, parameter in parameters.items():
        if is_lazy(parameter):
            raise ModelError(
                f"{name} has a lazy layer: {key} has no shape yet",
                hint="give the layer its input size; in_channels and image_size are passed to your function",
            )
    return next(iter(parameters.values())).device


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


@contextmanager
def _untouched(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Put the training flags, the buffers and torch's generators back as they were."""
    flags = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    cuda_devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices=cuda_devices):
            yield
    finally:
        for module, training in flags:
            module.training = training
        for module, name, buffer, before in buffers:
            setattr(module, name, buffer)
            # An expanded buffer cannot be written to, so write only what has changed.
            if not torch.equal(buffer, before):
                buffer.data.copy_(before)
