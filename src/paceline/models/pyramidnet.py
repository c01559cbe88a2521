"""The pyramidal residual networks for small images: every block is slightly wider than the previous one.

Han, Kim and Kim 2017, basic blocks, additive widening. Shortcuts have no parameters: an average pool where the
resolution halves, and zeros in the channels that are new. Every normalisation starts at scale 1, as theirs did.
"""

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from paceline.models.family import Family, ImageShape
from paceline.models.residual import conv3x3, draw_convolutions

STEM_WIDTH = 16
NUM_STAGES = 3


class PyramidBlock(nn.Module):
    """Normalise, convolve, normalise, activate, convolve, normalise: one activation only."""

    def __init__(self, num_in: int, num_out: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(num_in)
        self.conv1 = conv3x3(num_in, num_out, stride)
        self.norm2 = nn.BatchNorm2d(num_out)
        self.conv2 = conv3x3(num_out, num_out)
        self.norm3 = nn.BatchNorm2d(num_out)
        # An odd height is rounded up, as the strided convolution does.
        self.pool = nn.Identity() if stride == 1 else nn.AvgPool2d(stride, ceil_mode=True)
        self.num_new = num_out - num_in

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Add the residual to the padded shortcut."""
        hidden = functional.relu(self.norm2(self.conv1(self.norm1(images))))
        hidden = self.norm3(self.conv2(hidden))
        return hidden + functional.pad(self.pool(images), (0, 0, 0, 0, 0, self.num_new))


class PyramidNet(nn.Module):
    """A 3×3 convolution, three stages of widening blocks, a last normalisation, a mean, a classifier."""

    def __init__(self, in_channels: int, widths: list[int], num_classes: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(in_channels, STEM_WIDTH)
        self.norm1 = nn.BatchNorm2d(STEM_WIDTH)
        self.blocks = _blocks(widths)
        self.norm = nn.BatchNorm2d(widths[-1])
        self.linear = nn.Linear(widths[-1], num_classes)
        draw_convolutions(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        features = self.blocks(self.norm1(self.conv1(images)))
        return self.linear(functional.relu(self.norm(features)).mean(dim=(2, 3)))


def _blocks(widths: list[int]) -> nn.Sequential:
    per_stage = len(widths) // NUM_STAGES
    blocks = nn.Sequential()
    num_in = STEM_WIDTH
    for index, width in enumerate(widths):
        starts_stage = index > 0 and index % per_stage == 0
        blocks.append(PyramidBlock(num_in, width, stride=2 if starts_stage else 1))
        num_in = width
    return blocks


def build_pyramidnet(depth: int, alpha: int, num_classes: int, image_shape: ImageShape) -> PyramidNet:
    """Return the network with this many weighted layers, `alpha` channels wider at the end than at the start."""
    num_blocks = (depth - 2) // 2
    widths = [round(STEM_WIDTH + alpha * (index + 1) / num_blocks) for index in range(num_blocks)]
    return PyramidNet(image_shape[0], widths, num_classes)


FAMILY: Family = {f"pyramidnet110-a{alpha}": partial(build_pyramidnet, 110, alpha) for alpha in (84, 270)}
