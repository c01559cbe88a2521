"""The modules that fsdp gathers one at a time: named by the model, or the repeated blocks that a rule finds."""

from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase

from torch import nn

from paceline.core.errors import ModelError

NAMED_BY_MODEL = "fsdp_units"
"""An attribute of a model with patterns of module names, such as ("layers.*",); () for the whole model at once."""
MIN_ELEMENTS = 1 << 18
"""Blocks with fewer parameters stay with the rest: gathering each of them would take longer than it saves memory."""


def find_units(model: nn.Module, *, name: str) -> list[nn.Module]:
    """Return the modules of a model that fsdp gathers one at a time, inner ones first; the rest is gathered at once."""
    named = getattr(model, NAMED_BY_MODEL, None)
    if named is not None:
        return _named_units(model, named, name)
    found = _hugging_face_units(model) or list(_repeated_blocks(model))
    sharing = _sharing_modules(model)
    return [unit for unit in found if unit not in sharing and _num_elements(unit) >= MIN_ELEMENTS]


def _named_units(model: nn.Module, patterns: object, name: str) -> list[nn.Module]:
    if isinstance(patterns, str) or not isinstance(patterns, list | tuple):
        raise ModelError(
            f"{NAMED_BY_MODEL} of {name} is {patterns!r}, not a list of module names",
            hint=f'write, for example, {NAMED_BY_MODEL} = ("layers.*",)',
        )
    modules = dict(model.named_modules())
    matched: dict[str, nn.Module] = {}
    for pattern in patterns:
        # a * stands for one part of a name: layers.* are the layers, not what is inside them
        depth = pattern.count(".")
        found = {key: each for key, each in modules.items() if key.count(".") == depth and fnmatchcase(key, pattern)}
        if not found:
            raise ModelError(
                f"{NAMED_BY_MODEL} of {name} names {pattern!r}, which no module matches",
                hint=f"its modules are {', '.join(key for key, _ in model.named_children())}, …",
            )
        matched |= found
    return [matched[key] for key in sorted(matched, key=lambda key: -key.count("."))]


def _hugging_face_units(model: nn.Module) -> list[nn.Module]:
    """Return the blocks that a model of the library transformers says must not be split."""
    kinds = {kind for module in model.modules() for kind in getattr(module, "_no_split_modules", None) or ()}
    return [module for module in model.modules() if type(module).__name__ in kinds]


def _repeated_blocks(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost blocks of which a list has several of one class; single layers are no blocks.

    A list itself is never called, and the weights of a single layer may be used without calling it.
    """
    children = [child for child in module.children() if next(child.children(), None) is not None]
    kinds = Counter(type(child) for child in children) if isinstance(module, nn.ModuleList | nn.Sequential) else {}
    for child in children:
        is_list = isinstance(child, nn.ModuleList | nn.ModuleDict | nn.Sequential)
        if kinds.get(type(child), 0) > 1 and not is_list:
            yield child
        else:
            yield from _repeated_blocks(child)


def _sharing_modules(model: nn.Module) -> set[nn.Module]:
    """Return the modules that share a parameter with a module outside of them, or that are used in several places."""
    every = list(model.named_modules(remove_duplicate=False))
    places = Counter(module for _, module in every)
    holders = Counter(parameter for _, module in every for parameter in module._parameters.values())  # noqa: SLF001
    shared = {parameter for parameter, count in holders.items() if parameter is not None and count > 1}
    return {
        module
        for module, count in places.items()
        if count > 1 or any(parameter in shared for parameter in module.parameters())
    }


def _num_elements(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
