"""A rank without images of its own: it takes part in what all ranks do together, and leaves no trace."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from paceline.parallel.batchnorm import SyncBatchNorm, muted


@contextmanager
def idle(model: nn.Module) -> Iterator[None]:
    """Let the model see images that do not count: synchronised statistics leave them out, local ones forget them."""
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    synchronised = any(isinstance(module, SyncBatchNorm) for module in model.modules())
    with muted(model):
        yield
    if not synchronised:
        for buffer, value in before:
            buffer.copy_(value)
