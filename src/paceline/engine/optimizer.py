"""The optimizer that the settings describe."""

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from paceline.core.config import Config

NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)  # noqa: SLF001 - the common base of batch norms


def build_optimizer(config: Config, model: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer over all trainable parameters; the learning rate is set anew before every step."""
    groups = parameter_groups(model, config)
    lr = config.base_lr
    fused = all(has_fused_kernel(parameter) for parameter in model.parameters())
    if config.optimizer == "sgd":
        nesterov = config.momentum > 0
        return torch.optim.SGD(groups, lr=lr, momentum=config.momentum, nesterov=nesterov, fused=fused)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, lr=lr, fused=fused)


def has_fused_kernel(parameter: nn.Parameter) -> bool:
    """Tell whether one kernel can update it: none does for sharded ones, and torch 2.13's SGD spoils bf16 momentum."""
    return not isinstance(parameter, DTensor) and parameter.dtype in {torch.float32, torch.float64}


def parameter_groups(model: nn.Module, config: Config) -> list[dict]:
    """Split the parameters into those that decay and, with --no-decay-norm, those that do not."""
    kept: set[nn.Parameter] = set()
    if config.no_decay_norm:
        for module in model.modules():
            inner = module.parameters(recurse=False) if isinstance(module, NORMS) else []
            kept.update(inner)
            bias = getattr(module, "bias", None)
            if isinstance(bias, nn.Parameter):
                kept.add(bias)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trainable if p not in kept], "weight_decay": config.weight_decay},
        {"params": [p for p in trainable if p in kept], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
