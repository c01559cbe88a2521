"""The optimizer that the settings describe, and the moving average of the weights."""

import copy
from typing import Any

import torch
from torch import nn

from paceline.core.config import Config
from paceline.core.plugin import is_plugin
from paceline.engine.layer_patterns import lr_factors
from paceline.engine.user_optimizer import build_user_optimizer
from paceline.parallel.sharded import is_sharded

NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)  # noqa: SLF001 - the common base of batch norms


def build_optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer over all trainable parameters; the learning rate is set before every step."""
    groups = parameter_groups(model, config)
    if is_plugin(config.optimizer):
        return build_user_optimizer(config, model, groups)
    lr = config.base_lr
    # The rounding of fused kernels depends on where a tensor is cut into shards.
    fused = config.exact == "order" and all(has_fused_kernel(parameter) for parameter in model.parameters())
    # None, not False, which would also turn off foreach: a GPU would update parameters one by one.
    how: dict[str, Any] = {"fused": fused or None, "foreach": True if config.exact == "bitwise" else None}
    if config.optimizer == "sgd":
        sgd = torch.optim.SGD(groups, lr=lr, momentum=config.momentum, nesterov=config.momentum > 0, **how)
        if fused and config.momentum > 0:
            start_momentum_late(sgd)
        return sgd
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, lr=lr, **how)


def start_momentum_late(sgd: torch.optim.SGD) -> None:
    """Let parameters get their first gradient after others; torch 2.13's fused SGD fails on them.

    Momentum that starts at zero gives the same first update as torch's own start.
    """
    waiting = [parameter for group in sgd.param_groups for parameter in group["params"]]

    def start(_sgd: torch.optim.Optimizer, _args: object, _kwargs: object) -> None:
        if not (waiting and sgd.state):  # at the first step of all, torch's own start is right
            return
        waiting[:] = [parameter for parameter in waiting if not sgd.state.get(parameter)]
        for parameter in waiting:
            if parameter.grad is not None:
                sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    sgd.register_step_pre_hook(start)


def unused_parameters(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[str]:
    """Return the trainable parameters that have never had a gradient: optimizers with memory keep none of them."""
    if not optimizer.state:
        return []
    trainable = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    return [name for name, parameter in trainable if not optimizer.state.get(parameter)]


def has_fused_kernel(parameter: nn.Parameter) -> bool:
    """Tell whether a fused optimizer can update it: not if sharded, and torch 2.13's SGD corrupts bf16 momentum."""
    return not is_sharded(parameter) and parameter.dtype in {torch.float32, torch.float64}


def parameter_groups(model: nn.Module, config: Config) -> list[dict]:
    """Split the parameters by weight decay (--no-decay-norm) and by their factor on the learning rate (--lr-for)."""
    kept: set[nn.Parameter] = set()
    if config.no_decay_norm:
        for module in model.modules():
            inner = module.parameters(recurse=False) if isinstance(module, NORMS) else []
            kept.update(inner)
            bias = getattr(module, "bias", None)
            if isinstance(bias, nn.Parameter):
                kept.add(bias)
    factors = lr_factors(model, config)
    groups: dict[tuple[bool, float], dict[str, Any]] = {}
    for decays in (True, False):
        for parameter in model.parameters():
            if parameter.requires_grad and (parameter not in kept) == decays:
                values = {"weight_decay": config.weight_decay if decays else 0.0, "lr_factor": factors[parameter]}
                groups.setdefault((decays, factors[parameter]), {"params": [], **values})["params"].append(parameter)
    return list(groups.values())


class MovingAverage:
    """A copy of the model with averaged weights."""

    def __init__(self, average: nn.Module, source: nn.Module, decay: float, *, warms_up: bool = True) -> None:
        """`average` starts as a copy of the source, sharded in the same way.

        While it warms up the decay is smaller, to forget the initial weights.
        """
        self.model = average
        self._decay, self._warms_up = decay, warms_up
        self._source = source
        pairs = [*zip(average.parameters(), source.parameters(), strict=True)]
        self._averaged = [(mine, theirs) for mine, theirs in pairs if mine.is_floating_point()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average after the step-th step."""
        decay = min(self._decay, (1 + step) / (10 + step)) if self._warms_up else self._decay
        buffers = self._buffers()
        pairs = [(_own(mine), _own(theirs)) for mine, theirs in self._averaged]
        pairs += [pair for pair in buffers if pair[0].is_floating_point()]
        torch._foreach_lerp_([mine for mine, _ in pairs], [theirs for _, theirs in pairs], 1 - decay)
        copied = [pair for pair in buffers if not pair[0].is_floating_point()]
        if copied:
            torch._foreach_copy_([mine for mine, _ in copied], [theirs for _, theirs in copied])

    def _buffers(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the buffers of both models; a forward pass may have replaced one, or given it its first value."""
        pairs = []
        for mine, theirs in zip(self.model.modules(), self._source.modules(), strict=True):
            for name, buffer in theirs.named_buffers(recurse=False):
                if getattr(mine, name) is None:
                    setattr(mine, name, buffer.clone())
                pairs.append((getattr(mine, name), buffer))
        return pairs


def copy_frozen(model: nn.Module) -> nn.Module:
    """Return a copy of a model that no gradient reaches, in evaluation mode."""
    return copy.deepcopy(model).eval().requires_grad_(requires_grad=False)


def _own(parameter: torch.Tensor) -> torch.Tensor:
    """Return what this rank holds of a parameter."""
    return parameter.to_local() if is_sharded(parameter) else parameter
