"""Names become models: ours, another library's, or the user's own "my.py:build"."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from paceline.core.entry_points import entry_names, is_own_part, load_part
from paceline.core.errors import ModelError, suggestion
from paceline.core.plugin import call_plugin
from paceline.models import fastnet, gpt, plain, pyramidnet, resnet, unet, wide_resnet
from paceline.models.family import Family
from paceline.models.hugging_face import build_hugging_face
from paceline.models.libraries import build_from_library, is_library

FAMILIES: tuple[Family, ...] = (
    plain.FAMILY,
    resnet.SMALL_FAMILY,
    resnet.IMAGENET_FAMILY,
    wide_resnet.FAMILY,
    pyramidnet.FAMILY,
    fastnet.FAMILY,
)
"""Image classifiers."""


def list_models() -> list[str]:
    """Return the names of our own models, family by family."""
    return [*list_classifiers(), *unet.FAMILY, *gpt.SHAPES]


def list_classifiers() -> list[str]:
    """Return the names of our own image classifiers."""
    return [name for family in FAMILIES for name in family]


def usual_facts(name: str) -> dict[str, Any]:
    """Return the facts of the data that one of our models is usually quoted for."""
    if name in gpt.SHAPES:
        return dict(gpt.usual_text(name))
    if name in resnet.IMAGENET_FAMILY:
        return {"num_classes": 1000, "image_shape": (3, 224, 224)}
    return {"num_classes": 10, "image_shape": (3, 32, 32)}


def build_model(name: str, **facts: Any) -> nn.Module:
    """Return a fresh model for data with these facts (num_classes, image_shape, ...), drawn from torch's global seed.

    The user's own function gets the facts that it asks for by name.
    """
    is_known = is_library(name) or name.startswith("hf:") or name in list_models()
    if not is_known:
        if is_own_part("models", name):
            return _build_plugin(name, facts)
        known = [*list_models(), *entry_names("models")]
        raise ModelError(f"there is no model {name}", hint=suggestion(name, known))
    if name in gpt.SHAPES:
        return gpt.build_gpt(name, facts)
    if name.startswith("hf:"):
        return build_hugging_face(name, facts)
    facts = {"num_classes": facts["num_outputs"], **facts} if "num_outputs" in facts else facts
    missing = [fact for fact in ("image_shape", "num_classes") if fact not in facts]
    if missing:
        problem = f"{name} takes images and returns a score per class, but the data has no {' and no '.join(missing)}"
        raise ModelError(problem, hint="choose a model for this data with --model")
    num_classes, image_shape = facts["num_classes"], facts["image_shape"]
    if is_library(name):
        return build_from_library(name, num_classes, image_shape)
    return next(family[name] for family in (*FAMILIES, unet.FAMILY) if name in family)(num_classes, image_shape)


def _build_plugin(name: str, facts: Mapping[str, Any]) -> nn.Module:
    offered = dict(facts)
    if "image_shape" in facts:
        channels, height, _ = facts["image_shape"]
        offered |= {"in_channels": channels, "image_size": height}
    model = call_plugin(name, load_part("models", name, ModelError), offered, ModelError)
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
