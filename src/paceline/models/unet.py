"""A small U-Net: an image in, scores for every pixel out."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.models.family import Family, ImageShape
from paceline.models.residual import conv3x3, draw_convolutions


class UNet(nn.Module):
    """Halves the image at each level, then doubles it again, with shortcuts between equal sizes."""

    def __init__(self, num_classes: int, image_shape: ImageShape, widths: tuple[int, ...]) -> None:
        super().__init__()
        inputs = (image_shape[0], *widths)
        self.down = nn.ModuleList(_layer(before, width) for before, width in zip(inputs, widths, strict=False))
        pairs = list(pairwise(widths))
        self.up = nn.ModuleList(_layer(above + below, above) for above, below in reversed(pairs))
        self.head = nn.Conv2d(widths[0], num_classes, 1)
        draw_convolutions(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return scores (N×classes×H×W)."""
        levels = [self.down[0](images)]
        for layer in list(self.down)[1:]:
            levels.append(layer(functional.max_pool2d(levels[-1], 2, ceil_mode=True)))
        hidden = levels.pop()
        for layer in self.up:
            level = levels.pop()
            larger = hidden.repeat_interleave(2, 2).repeat_interleave(2, 3)[:, :, : level.shape[2], : level.shape[3]]
            hidden = layer(torch.cat([level, larger], dim=1))
        return self.head(hidden)


def _layer(num_in: int, num_out: int) -> nn.Sequential:
    return nn.Sequential(conv3x3(num_in, num_out, 1), nn.BatchNorm2d(num_out), nn.ReLU())


FAMILY: Family = {
    "unet-nano": lambda num_classes, image_shape: UNet(num_classes, image_shape, (16, 32, 32)),
    "unet": lambda num_classes, image_shape: UNet(num_classes, image_shape, (64, 128, 256, 512)),
}
