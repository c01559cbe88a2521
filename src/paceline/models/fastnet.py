"""The network for time to accuracy on a CPU: a whitened first layer, then three pairs of convolutions.

After the public CIFAR-10 speed records (Page 2019, Jordan 2024), made narrow until two cores can train it. Whatever is
unusual about it is inside the model, so a plain loop with SGD trains it. For images of 32×32 pixels:

    whitening 2×2 (not trained), GELU                                        31×31×24
    [conv 3×3, max-pool 2, batch norm, GELU, conv 3×3, batch norm, GELU]     15×15×32, 7×7×80, 3×3×160
    maximum over the image, linear, logits × 1/9
"""

import torch
from torch import nn
from torch.nn import functional

from paceline.core.errors import ModelError
from paceline.models.family import Family, ImageShape
from paceline.models.residual import conv3x3

WIDTHS = (32, 80, 160)
PATCH = 2
"""Side of the whitened patches in pixels."""
MOST_DIRECTIONS = 12
"""Principal directions of the patches that are kept, each with its negative."""
SMALLEST_IMAGE = 16
LOGIT_SCALE = 1 / 9
NORM_MOMENTUM = 0.4
BIAS_SCALE = 8.0
VARIANCE_FLOOR = 5e-4
CHUNK = 512


class ScaledBias(nn.Module):
    """Adds a bias that counts eight times: under SGD it learns 64 times as fast, without a separate learning rate."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the images with the bias of each channel added."""
        return images + (self.bias * BIAS_SCALE).view(1, -1, 1, 1)


class FastNet(nn.Module):
    """Whitening, three pairs of convolutions, a maximum over the image, a classifier."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        num_out = 2 * min(MOST_DIRECTIONS, in_channels * PATCH * PATCH)
        self.whitening = nn.Conv2d(in_channels, num_out, PATCH, bias=False).requires_grad_(requires_grad=False)
        self.pairs = nn.Sequential()
        num_in = num_out
        for width in WIDTHS:
            self.pairs.append(_pair(num_in, width))
            num_in = width
        self.linear = nn.Linear(num_in, num_classes, bias=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        features = self.pairs(functional.gelu(self.whitening(images)))
        return self.linear(features.amax(dim=(2, 3))) * LOGIT_SCALE

    @torch.no_grad()
    def prepare(self, images: torch.Tensor) -> None:
        """Make the first layer whiten 2×2 patches of these images: outputs are uncorrelated, with unit variance."""
        layer = self.whitening
        length = layer.in_channels * PATCH * PATCH
        moments, num_patches = torch.zeros(length, length, dtype=torch.float64), 0
        for chunk in images.split(CHUNK):
            patches = functional.unfold(chunk.contiguous(), PATCH).transpose(1, 2).reshape(-1, length).double()
            moments += patches.T @ patches
            num_patches += len(patches)
        variances, directions = torch.linalg.eigh(moments / num_patches)
        filters = (directions / (variances + VARIANCE_FLOOR).sqrt()).flip(1).T[: layer.out_channels // 2]
        filters = filters.reshape(-1, layer.in_channels, PATCH, PATCH)
        layer.weight.copy_(torch.cat([filters, -filters]))


def _pair(num_in: int, num_out: int) -> nn.Sequential:
    """Return two convolutions, each with its batch norm and GELU; the first one halves the image."""
    first, second = _identity_conv(num_in, num_out), _identity_conv(num_out, num_out)
    return nn.Sequential(first, nn.MaxPool2d(2), *_norm(num_out), second, *_norm(num_out))


def _norm(channels: int) -> tuple[nn.Module, ...]:
    return nn.BatchNorm2d(channels, momentum=NORM_MOMENTUM, affine=False), ScaledBias(channels), nn.GELU()


def _identity_conv(num_in: int, num_out: int) -> nn.Conv2d:
    """Return a convolution whose first filters pass their input on."""
    conv = conv3x3(num_in, num_out)
    with torch.no_grad():
        nn.init.dirac_(conv.weight[:num_in])
    return conv


def build_fastnet(num_classes: int, image_shape: ImageShape) -> FastNet:
    """Return the network; its first layer is random until `prepare` has seen training images."""
    channels, height, width = image_shape
    if min(height, width) < SMALLEST_IMAGE:
        raise ModelError(
            f"fastnet halves an image three times, so {height}×{width} pixels are too few",
            hint=f"it needs {SMALLEST_IMAGE}×{SMALLEST_IMAGE}; cnn and resnet20 take smaller ones",
        )
    return FastNet(channels, num_classes)


FAMILY: Family = {"fastnet": build_fastnet}
