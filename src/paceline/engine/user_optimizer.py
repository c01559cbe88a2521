"""The user's own optimizer, "my.py:build" or "torch.optim:RMSprop": built, and checked before training."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from paceline.core.config import DEFAULTS_BY_NAME, Config
from paceline.core.errors import ConfigError
from paceline.core.plugin import accepted_arguments, call_plugin, load_plugin


def build_user_optimizer(config: Config, model: nn.Module, groups: list[dict[str, Any]]) -> Optimizer:
    """Call the user's function or class with what it asks for: params, lr, weight_decay, model.

    `params` are groups; its own groups may have their own learning rates, which the schedule scales alike.
    """
    name, make = config.optimizer, load_plugin(config.optimizer, ConfigError)
    offered = {"params": groups, "lr": config.base_lr, "weight_decay": config.weight_decay, "model": model}
    _refuse_unused(config, make, offered)
    if not config.no_decay_norm:
        for group in groups:  # else it would override the value that the user's code chooses
            del group["weight_decay"]
    optimizer = call_plugin(name, make, offered, ConfigError)
    if not isinstance(optimizer, Optimizer):
        problem = f"{name} returned {_describe(optimizer)}, not a torch.optim.Optimizer"
        raise ConfigError(problem, hint="write: def build(params, lr): return torch.optim.SGD(params, lr)")
    _check_parameters(name, optimizer, model)
    if inspect.signature(optimizer.step).parameters.get("closure", _OPTIONAL).default is inspect.Parameter.empty:
        problem = f"the optimizer of {name}, {type(optimizer).__name__}, computes the loss again in step(closure)"
        raise ConfigError(problem, hint="choose an optimizer whose step() needs no argument")
    for group in optimizer.param_groups:
        group["lr_factor"] = group.get("lr_factor", 1.0) * _own_factor(group, config.base_lr)
    return optimizer


_OPTIONAL = inspect.Parameter("closure", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)


def _own_factor(group: dict[str, Any], lr: float) -> float:
    own = group.get("lr", lr)
    return float(own) / lr


def _refuse_unused(config: Config, make: Callable[..., Any], offered: dict[str, Any]) -> None:
    """Refuse a function that does not take the learning rate or another setting that the user has chosen."""
    accepted, name = accepted_arguments(make, offered), config.optimizer
    if "lr" not in accepted:
        problem = f"{name} takes no argument lr, which --lr and the schedule set"
        raise ConfigError(problem, hint="write: def build(params, lr)")
    if "weight_decay" not in accepted and config.weight_decay != DEFAULTS_BY_NAME["weight_decay"]:
        problem = f"--weight-decay {config.weight_decay:g} has no effect: {name} takes no argument weight_decay"
        raise ConfigError(problem, hint="add the argument, or drop --weight-decay")
    if config.lr_for and "params" not in accepted:
        problem = f"--lr-for has no effect: {name} takes no argument params, the groups with these factors"
        raise ConfigError(problem, hint="write: def build(params, lr), or drop --lr-for")


def _check_parameters(name: str, optimizer: Optimizer, model: nn.Module) -> None:
    """Refuse an optimizer that leaves out trainable parameters, or has others."""
    names = {parameter: key for key, parameter in model.named_parameters() if parameter.requires_grad}
    held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    missing = [key for parameter, key in names.items() if parameter not in held]
    if missing:
        problem = f"the optimizer of {name} leaves out {missing[0]}" + (
            f" and {len(missing) - 1} other parameters" if len(missing) > 1 else ""
        )
        raise ConfigError(problem, hint="give it all of params; to keep a layer as it is, use --freeze")
    if not held <= names.keys():
        problem = f"the optimizer of {name} has parameters that are not trainable ones of the model"
        raise ConfigError(problem, hint="give it params, and nothing else")


def _describe(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return "None" if value is None else f"an object of type {type(value).__name__}"


def group_values(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return what groups hold besides parameters and learning rate: some optimizers keep their state there."""
    return [
        {key: value for key, value in group.items() if key not in {"params", "lr"} and _is_stored(value)}
        for group in optimizer.param_groups
    ]


def _is_stored(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_stored(each) for each in value)
    return value is None or isinstance(value, str | int | float | torch.Tensor)
