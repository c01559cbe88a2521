"""What the shards of a step did to the buffers, as one vector that is summed like a gradient."""

import torch
from torch import nn

from paceline.parallel.buffers import ShardBuffers


class BufferChanges:
    """Lets every shard start from the same buffers, and applies the weighted sum of their changes at the end.

    The weights of all shards add up to one, so a counter that every shard advances by one does so once.
    """

    def __init__(self, model: nn.Module) -> None:
        self._buffers = ShardBuffers(model)
        device = next(model.parameters()).device
        self.carrier = nn.Parameter(torch.zeros(self._buffers.size, device=device), requires_grad=False)
        """Its gradient is the change of one shard, and after the exchange that of all."""

    def begin(self) -> None:
        """Remember the buffers as they are before a step."""
        self._buffers.begin()

    def reset(self) -> None:
        """Put back the buffers as they were, before a shard."""
        self._buffers.reset()

    def collect(self, weight: float) -> None:
        """Leave the changes that a shard made, by its share of the batch, in the carrier."""
        self.carrier.grad = self._buffers.change(weight).to(self.carrier)

    def apply(self) -> None:
        """Change the buffers by what the carrier holds now."""
        change = self.carrier.grad
        assert change is not None
        self._buffers.apply(change.double())
        self.carrier.grad = None
