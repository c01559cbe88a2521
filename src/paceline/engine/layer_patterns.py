"""Settings that name layers by a pattern: which are frozen, which learn faster, which recompute their activations."""

import functools
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fnmatch import fnmatchcase
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from paceline.core.config import Config
from paceline.core.config_rules import parse_factor
from paceline.core.errors import ConfigError, flag, suggestion
from paceline.parallel.batchnorm import SyncBatchNorm

BATCH_NORM = nn.modules.batchnorm._NormBase  # noqa: SLF001 - the common base of batch norms


def apply_patterns(model: nn.Module, config: Config) -> None:
    """Freeze and checkpoint the layers that the settings name; a pattern that matches nothing is refused."""
    if config.freeze:
        freeze(model, config)
    if config.checkpoint_activations:
        checkpoint_activations(model, config)


def freeze(model: nn.Module, config: Config) -> None:
    """Exclude parameters from training, and keep the statistics of their batch-norm layers as they are."""
    parameters = dict(model.named_parameters())
    for pattern in config.freeze:
        for name in _matches(pattern, parameters, "freeze", model):
            parameters[name].requires_grad = False
    if not any(parameter.requires_grad for parameter in parameters.values()):
        raise ConfigError(
            f"--freeze {','.join(config.freeze)} matches every parameter of {config.model}: nothing is left to train",
            hint="leave out a layer, such as the last one",
        )
    for name, module in model.named_modules():
        if isinstance(module, BATCH_NORM) and _is_frozen(name, module, config.freeze):
            module.eval()
            module.train = MethodType(_stay, module)


def _is_frozen(name: str, module: nn.Module, patterns: Iterable[str]) -> bool:
    own = list(module.parameters(recurse=False))
    if own:
        return not any(parameter.requires_grad for parameter in own)
    return any(_fits(name, pattern) for pattern in patterns)


def _stay(module: nn.Module, mode: bool = True) -> nn.Module:  # noqa: FBT001, FBT002 - the signature of torch
    """Replace `train` of a frozen batch norm: it normalises with the statistics that it has."""
    return module


def lr_factors(model: nn.Module, config: Config) -> dict[nn.Parameter, float]:
    """Return the factor of each parameter on the learning rate; where several patterns match, the last one counts."""
    parameters = dict(model.named_parameters())
    factors = dict.fromkeys(parameters.values(), 1.0)
    for text in config.lr_for:
        pattern, factor = parse_factor(text)
        for name in _matches(pattern, parameters, "lr_for", model):
            factors[parameters[name]] = factor
    return factors


def checkpoint_activations(model: nn.Module, config: Config) -> None:
    """Let layers compute their activations again in the backward pass instead of keeping them; the result is the same.

    Inside a layer that matches, others are not checkpointed separately.
    """
    modules = {
        name: module
        for name, module in model.named_modules()
        if name and not isinstance(module, nn.ModuleList | nn.ModuleDict)  # these are never called
    }
    chosen: list[str] = []
    for pattern in config.checkpoint_activations:
        chosen += _matches(pattern, modules, "checkpoint_activations", model, inside=False)
    for name in set(chosen):
        if not any(name.startswith(f"{other}.") for other in chosen):
            _checkpoint(name, modules[name])


def _checkpoint(name: str, module: nn.Module) -> None:
    if any(isinstance(inner, SyncBatchNorm) for inner in module.modules()):
        raise ConfigError(
            f"--checkpoint-activations matches {name}, which has synchronised batch norm",
            hint="use --batch-norm ghost or local, or choose layers without batch norm",
        )
    contexts = functools.partial(_contexts, module)
    forward = functools.partial(checkpoint, module.forward, use_reentrant=False, context_fn=contexts)
    setattr(module, "forward", forward)  # noqa: B010 - pyright does not let a method be replaced


def _contexts(module: nn.Module) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """Return the contexts of the first and of the second forward pass."""
    return nullcontext(), _same_buffers(module)


@contextmanager
def _same_buffers(module: nn.Module) -> Iterator[None]:
    """Restore the buffers after a second forward pass: batch norm has counted these samples before."""
    before = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield  # torch leaves by an exception as soon as it has all that it needs
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


def _matches(pattern: str, names: Iterable[str], setting: str, model: nn.Module, *, inside: bool = True) -> list[str]:
    """Return the names that match a pattern; with `inside`, a pattern also stands for everything inside a layer."""
    names = list(names)
    found = [name for name in names if (_fits(name, pattern) if inside else fnmatchcase(name, pattern))]
    if not found:
        layers = [name for name, _ in model.named_children()]
        hint = suggestion(pattern, layers) if inside else f"{suggestion(pattern, layers)}, and {layers[0]}.*"
        raise ConfigError(f"{flag(setting)} {pattern} matches nothing in the model", hint=hint)
    return found


def _fits(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")
