"""What FSDP has sharded: telling it and freeing it, without importing FSDP, which takes long and few runs use."""

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

from torch import nn

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def is_sharded(value: Any) -> "TypeGuard[DTensor]":
    """Tell whether a tensor is spread over the ranks."""
    module = sys.modules.get("torch.distributed.tensor")  # there is none before it is imported
    return module is not None and isinstance(value, module.DTensor)


def has_sharded_parameters(module: Any) -> "TypeGuard[FSDPModule]":
    """Tell whether `fully_shard` was applied to a module."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def free_gathered(model: nn.Module) -> None:
    """Keep only the shards of a model: after a forward pass without a backward pass FSDP leaves weights gathered."""
    for module in model.modules():
        if has_sharded_parameters(module):
            module.reshard()
