"""The trial run: two black images tell whether a model fits the data before any rank starts to train."""

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from paceline.core.errors import ModelError
from paceline.models.family import ImageShape
from paceline.models.trial import trial_forward

NUM_IMAGES = 2


def check_model(model: nn.Module, *, num_classes: int, image_shape: ImageShape, name: str) -> None:
    """Raise ModelError unless the model gives one row of `num_classes` scores per image; change nothing in it."""
    _check_parameters(model, name)
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


def _check_parameters(model: nn.Module, name: str) -> None:
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
