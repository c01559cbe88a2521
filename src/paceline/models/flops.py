"""The arithmetic of a model: how many operations one image costs on its way forward."""

from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from paceline.models.family import ImageShape
from paceline.models.trial import trial_forward


def forward_flops(model: nn.Module, image_shape: ImageShape) -> int:
    """Return the floating-point operations of one image: convolutions and matrix products, nothing else.

    A multiplication and its addition are two operations. A model on the meta device is counted without computing.
    """
    with FlopCounterMode(display=False) as counter:
        trial_forward(model, 1, image_shape)
    return counter.get_total_flops()


def forward_macs(model: nn.Module, image_shape: ImageShape) -> int:
    """Return the multiply-accumulates of one image: half its floating-point operations."""
    return forward_flops(model, image_shape) // 2
