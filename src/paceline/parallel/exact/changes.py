"""What the shards of a step did to the buffers, as one vector that is summed like a gradient."""

import torch
from torch import Tensor, nn


class BufferChanges:
    """Lets every shard start from the same buffers, and applies the weighted sum of their changes at the end.

    The weights of all shards add up to one, so a counter that every shard advances by one does so once.
    """

    def __init__(self, model: nn.Module) -> None:
        self._buffers = [buffer for buffer in model.buffers() if buffer.numel() > 0]
        device = next(model.parameters()).device
        num = sum(buffer.numel() for buffer in self._buffers)
        self._before, self._now = (torch.zeros(num, device=device) for _ in range(2))
        self._before_views, self._now_views = self._split(self._before), self._split(self._now)
        self.carrier = nn.Parameter(torch.zeros(num, device=device), requires_grad=False)
        """Its gradient is the change of one shard, and after the exchange that of all."""
        self._exact = [buffer.clone() for buffer in self._buffers]

    def begin(self) -> None:
        """Remember the buffers as they are before a step."""
        if self._buffers:
            torch._foreach_copy_(self._exact, self._buffers)
            torch._foreach_copy_(self._before_views, self._buffers)

    def reset(self) -> None:
        """Put back the buffers as they were, before a shard."""
        if self._buffers:
            torch._foreach_copy_(self._buffers, self._exact)

    def collect(self, weight: float) -> None:
        """Leave the changes that a shard made, by its share of the batch, in the carrier."""
        if self._buffers:
            torch._foreach_copy_(self._now_views, self._buffers)
        # A constant may be infinite, as in a mask; its change is nothing, not a difference of infinities.
        changed = self._now != self._before
        self.carrier.grad = torch.where(changed, (self._now - self._before).mul_(weight), 0.0)

    def apply(self) -> None:
        """Change the buffers by what the carrier holds now."""
        change = self.carrier.grad
        assert change is not None
        self.reset()
        for buffer, part in zip(self._buffers, self._split(change), strict=True):
            buffer.add_(part if buffer.is_floating_point() else part.round().to(buffer.dtype))
        self.carrier.grad = None

    def _split(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split([buffer.numel() for buffer in self._buffers])
        return [part.view(buffer.shape) for part, buffer in zip(parts, self._buffers, strict=True)]
