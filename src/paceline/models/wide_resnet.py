"""The wide residual networks for small images: normalise, activate, convolve, with few but wide layers.

Zagoruyko and Komodakis 2016, without dropout. A residual ends in a convolution, so there is no last normalisation
that could start at scale 0.
"""

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from paceline.models.family import Family, ImageShape
from paceline.models.residual import conv1x1, conv3x3, draw_convolutions

STEM_WIDTH = 16
WIDTHS = (16, 32, 64)
"""Channels of the three stages before widening."""


class WideBlock(nn.Module):
    """Two 3×3 convolutions, each after its normalisation; a change of shape is projected from the activated input."""

    def __init__(self, num_in: int, num_out: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(num_in)
        self.conv1 = conv3x3(num_in, num_out, stride)
        self.norm2 = nn.BatchNorm2d(num_out)
        self.conv2 = conv3x3(num_out, num_out)
        self.shortcut = None if stride == 1 and num_in == num_out else conv1x1(num_in, num_out, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Add the residual to the shortcut."""
        active = functional.relu(self.norm1(images))
        hidden = functional.relu(self.norm2(self.conv1(active)))
        shortcut = images if self.shortcut is None else self.shortcut(active)
        return self.conv2(hidden) + shortcut


class WideResNet(nn.Module):
    """A 3×3 convolution, three stages of wide blocks, a last normalisation, a mean, a classifier."""

    def __init__(self, in_channels: int, num_blocks: int, widths: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(in_channels, STEM_WIDTH)
        self.stages = _stages(num_blocks, widths)
        self.norm = nn.BatchNorm2d(widths[-1])
        self.linear = nn.Linear(widths[-1], num_classes)
        draw_convolutions(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        features = functional.relu(self.norm(self.stages(self.conv1(images))))
        return self.linear(features.mean(dim=(2, 3)))


def _stages(num_blocks: int, widths: tuple[int, ...]) -> nn.Sequential:
    stages = nn.Sequential()
    num_in = STEM_WIDTH
    for index, width in enumerate(widths):
        first = WideBlock(num_in, width, stride=1 if index == 0 else 2)
        stages.append(nn.Sequential(first, *(WideBlock(width, width, stride=1) for _ in range(num_blocks - 1))))
        num_in = width
    return stages


def build_wide_resnet(depth: int, widening: int, num_classes: int, image_shape: ImageShape) -> WideResNet:
    """Return the network with this many convolutions, the stem and three projections among them, and this width."""
    num_blocks = (depth - 4) // (2 * len(WIDTHS))
    widths = tuple(width * widening for width in WIDTHS)
    return WideResNet(image_shape[0], num_blocks, widths, num_classes)


FAMILY: Family = {
    f"wide-resnet-{depth}-{widening}": partial(build_wide_resnet, depth, widening)
    for depth, widening in ((16, 8), (28, 10))
}
