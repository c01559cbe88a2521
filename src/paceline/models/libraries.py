"""Models of other libraries: "timm:NAME" and "torchvision:NAME", imported only when one is asked for."""

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

import torch
from torch import nn

from paceline.core.errors import ModelError
from paceline.models.family import ImageShape

INSTALL = "pip install 'paceline[vision]'"
RGB = 3
NUM_SUGGESTIONS = 5
TWO_HEADED = ("googlenet", "inception_v3")
"""Models of torchvision that return two sets of scores in training unless `aux_logits` is off."""


def is_library(name: str) -> bool:
    """Tell whether `name` asks another library for a model."""
    return name.partition(":")[0] in LIBRARIES


def build_from_library(name: str, num_classes: int, image_shape: ImageShape) -> nn.Module:
    """Return the fresh model that "library:NAME" names."""
    library, _, model_name = name.partition(":")
    return LIBRARIES[library](model_name, num_classes, image_shape)


def _build_timm(name: str, num_classes: int, image_shape: ImageShape) -> nn.Module:
    with _import_explained("timm"):
        timm = importlib.import_module("timm")
    _check_known("timm", name, timm.list_models())
    arguments: dict[str, Any] = {"num_classes": num_classes, "in_chans": image_shape[0]}
    # timm marks the models that are built for one image size, such as transformers: these need ours.
    if timm.get_pretrained_cfg_value(name, "fixed_input_size"):
        _, height, width = image_shape
        arguments["img_size"] = height if height == width else (height, width)
    return _call(f"timm:{name}", timm.create_model, name, arguments)


def _build_torchvision(name: str, num_classes: int, image_shape: ImageShape) -> nn.Module:
    with _import_explained("torchvision"):
        models = importlib.import_module("torchvision").models
    _check_known("torchvision", name, models.list_models(module=models))
    if image_shape[0] != RGB:
        raise ModelError(
            f"torchvision:{name} takes images of {RGB} channels, the data has {image_shape[0]}",
            hint="choose a timm model or one of ours, such as resnet18: they take any number of channels",
        )
    arguments: dict[str, Any] = {"num_classes": num_classes}
    if name in TWO_HEADED:
        arguments |= {"aux_logits": False, "init_weights": True}
    return _call(f"torchvision:{name}", models.get_model, name, arguments)


LIBRARIES: Mapping[str, Callable[[str, int, ImageShape], nn.Module]] = {
    "timm": _build_timm,
    "torchvision": _build_torchvision,
}


def _call(name: str, create: Callable[..., nn.Module], model_name: str, arguments: Mapping[str, Any]) -> nn.Module:
    """Create the model; where the library refuses an argument, quote our arguments and its error."""
    given = ", ".join(f"{key}={value}" for key, value in arguments.items())
    try:
        return create(model_name, **arguments)
    except Exception as cause:
        raise ModelError(
            f"{name} does not accept {given}: {type(cause).__name__}: {cause}",
            hint="choose another model, or build this one yourself in a function: --model my.py:build",
        ) from cause


@contextmanager
def _import_explained(library: str) -> Iterator[None]:
    """Turn whatever an import raises into a ModelError: a broken library is not a mistake in the command."""
    try:
        yield
    except Exception as cause:
        if isinstance(cause, ModuleNotFoundError) and cause.name == library:
            raise ModelError(f"{library} is not installed", hint=INSTALL) from cause
        raise ModelError(
            f"{library} is installed but cannot be imported: {type(cause).__name__}: {cause}",
            hint=f"{_hint(library, cause)}; paceline's own models work without it",
        ) from cause


def _hint(library: str, cause: Exception) -> str:
    """Return what to type: a torchvision without its compiled operators was built for another torch."""
    if "torchvision::" in str(cause):
        build = torch.__version__.partition("+")[2]
        index = f" --index-url https://download.pytorch.org/whl/{build}" if build else ""
        return f"its torchvision is for another torch: pip install --force-reinstall --no-deps torchvision{index}"
    if isinstance(cause, ModuleNotFoundError):
        return f"pip install {cause.name}, which {library} needs, or {INSTALL}"
    return f"pip install --force-reinstall --no-deps {library}"


def _check_known(library: str, name: str, known: Iterable[str]) -> None:
    known = list(known)
    if name in known:
        return
    close = get_close_matches(name, known, n=NUM_SUGGESTIONS, cutoff=0.5)
    listing = f"list all with: python -c 'from {library}.models import list_models; print(list_models())'"
    hint = f"did you mean {', '.join(close)}? ({listing})" if close else listing
    raise ModelError(f"there is no model {library}:{name}", hint=hint)
