"""The residual networks of ImageNet: resnet18, resnet34 and resnet50, with a stem that suits the size of the images.

He et al. 2016, with the stride of a bottleneck on its 3×3 convolution as in torchvision. The last normalisation of
each block starts at scale 0, which Goyal et al. 2017 found to help large global batches.
"""

from functools import partial

from paceline.models.family import Family, ImageShape
from paceline.models.residual import (
    BasicBlock,
    Bottleneck,
    Plan,
    ResNet,
    imagenet_stem,
    small_image_stem,
    start_as_identity,
)

WIDTHS = (64, 128, 256, 512)
SMALL_IMAGE = 64
"""Pixels: up to this height and width the stem keeps the resolution."""

PLANS = {
    "resnet18": Plan(block=BasicBlock, num_blocks=(2, 2, 2, 2), widths=WIDTHS),
    "resnet34": Plan(block=BasicBlock, num_blocks=(3, 4, 6, 3), widths=WIDTHS),
    "resnet50": Plan(block=Bottleneck, num_blocks=(3, 4, 6, 3), widths=WIDTHS),
}


def build(plan: Plan, num_classes: int, image_shape: ImageShape) -> ResNet:
    """Return the planned network for images of this shape."""
    channels, height, width = image_shape
    stem = small_image_stem if max(height, width) <= SMALL_IMAGE else imagenet_stem
    model = ResNet(stem(channels, WIDTHS[0]), plan, num_classes)
    start_as_identity(model)
    return model


FAMILY: Family = {name: partial(build, plan) for name, plan in PLANS.items()}
