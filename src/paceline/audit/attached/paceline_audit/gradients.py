"""Whether a script changes gradients itself before an update, and which parameters are shards of a model."""

from typing import Any

import torch

from .digests import digest


class Gradients:
    """Compares the gradients before an update with those that the passes, the scaler and clipping left."""

    def __init__(self) -> None:
        self.are_changed = False
        """Whether the script changed them before the last update, as when it divides after accumulation."""
        self._parameters: list[Any] = []
        self._left: int | None = None

    def remember(self) -> None:
        """Note the gradients that torch has left."""
        self._left = self._digest()

    def compare(self, optimizer: Any) -> None:
        """Compare the gradients at the start of an update."""
        self.are_changed = self._left is not None and self._left != self._digest()
        self._parameters = optimizer.param_groups[0]["params"]

    def _digest(self) -> int | None:
        gradient = next((p.grad for p in self._parameters if p.grad is not None), None)
        return None if gradient is None or gradient.is_sparse else digest(gradient)


def is_shard(parameter: Any) -> bool:
    """Tell whether a parameter is a shard of one: of tensor parallelism or of FSDP."""
    return hasattr(parameter, "to_local") or hasattr(parameter, "_local_shard") or hasattr(parameter, "_is_flat_param")


def norm_of(parameters: list[Any]) -> float:
    """Return the norm of what this rank holds of the parameters."""
    local = [p.to_local() if hasattr(p, "to_local") else p for p in parameters]
    return float(torch.stack([p.detach().double().norm() for p in local]).norm()) if local else 0.0
