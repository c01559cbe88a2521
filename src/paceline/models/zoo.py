"""Names become models: ours, another library's, or the user's own "my.py:build"."""

from typing import Any

from torch import nn

from paceline.core.errors import ModelError, suggestion
from paceline.core.plugin import call_plugin, is_plugin, load_plugin
from paceline.models import fastnet, plain, pyramidnet, resnet, wide_resnet
from paceline.models.family import Family, ImageShape
from paceline.models.libraries import build_from_library, is_library

FAMILIES: tuple[Family, ...] = (
    plain.FAMILY,
    resnet.SMALL_FAMILY,
    resnet.IMAGENET_FAMILY,
    wide_resnet.FAMILY,
    pyramidnet.FAMILY,
    fastnet.FAMILY,
)


def list_models() -> list[str]:
    """Return the names of our own models, family by family."""
    return [name for family in FAMILIES for name in family]


def usual_task(name: str) -> tuple[int, ImageShape]:
    """Return the number of classes and the image shape that one of our models is usually quoted for."""
    return (1000, (3, 224, 224)) if name in resnet.IMAGENET_FAMILY else (10, (3, 32, 32))


def build_model(name: str, *, num_classes: int, image_shape: ImageShape) -> nn.Module:
    """Return a fresh model for images of this shape (channels, height, width), drawn from torch's global seed."""
    if is_plugin(name):
        return _build_plugin(name, num_classes, image_shape)
    if is_library(name):
        return build_from_library(name, num_classes, image_shape)
    for family in FAMILIES:
        if name in family:
            return family[name](num_classes, image_shape)
    raise ModelError(f"there is no model {name}", hint=suggestion(name, list_models()))


def _build_plugin(name: str, num_classes: int, image_shape: ImageShape) -> nn.Module:
    offered = {
        "num_classes": num_classes,
        "in_channels": image_shape[0],
        "image_size": image_shape[1],
        "image_shape": image_shape,
    }
    model = call_plugin(name, load_plugin(name, ModelError), offered, ModelError)
    if not isinstance(model, nn.Module):
        raise ModelError(f"{name} returned {_describe(model)}, not a torch.nn.Module", hint=_hint(model))
    return model


def _describe(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"an object of type {type(value).__name__}"


def _hint(value: Any) -> str:
    if value is None:
        return "end the function with: return model"
    if isinstance(value, type):
        return f"call the class: return {value.__name__}(...)"
    return "return the model itself, ready to be called with a batch of images"
