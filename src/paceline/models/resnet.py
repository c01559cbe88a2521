"""The residual networks of He et al. 2016: resnet18 to resnet50 for ImageNet, resnet20 to resnet110 for small images.

The ImageNet networks choose a stem by the size of the images and have the stride of a bottleneck on its 3×3
convolution, as in torchvision. The last normalisation of each block starts at scale 0, which Goyal et al. 2017 found to
help large global batches.

The networks for small images (section 4.2, 16 to 64 channels wide) have projection shortcuts (option B) instead of zero
padding: a 1×1 convolution and its normalisation at the start of a stage. Every normalisation starts at scale 1, as in
the paper.
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

IMAGENET_WIDTHS = (64, 128, 256, 512)
SMALL_IMAGE = 64
"""Pixels: up to this height and width the stem of an ImageNet network keeps the resolution."""

IMAGENET_PLANS = {
    "resnet18": Plan(block=BasicBlock, num_blocks=(2, 2, 2, 2), widths=IMAGENET_WIDTHS),
    "resnet34": Plan(block=BasicBlock, num_blocks=(3, 4, 6, 3), widths=IMAGENET_WIDTHS),
    "resnet50": Plan(block=Bottleneck, num_blocks=(3, 4, 6, 3), widths=IMAGENET_WIDTHS),
}

SMALL_DEPTHS = (20, 32, 44, 56, 110)
SMALL_WIDTHS = (16, 32, 64)


def build_imagenet(plan: Plan, num_classes: int, image_shape: ImageShape) -> ResNet:
    """Return the planned network for images of this shape."""
    channels, height, width = image_shape
    stem = small_image_stem if max(height, width) <= SMALL_IMAGE else imagenet_stem
    model = ResNet(stem(channels, IMAGENET_WIDTHS[0]), plan, num_classes)
    start_as_identity(model)
    return model


def build_small(depth: int, num_classes: int, image_shape: ImageShape) -> ResNet:
    """Return the network with this many weighted layers: stem, classifier and two in each block."""
    num_stages = len(SMALL_WIDTHS)
    num_blocks = (depth - 2) // (2 * num_stages)
    plan = Plan(block=BasicBlock, num_blocks=(num_blocks,) * num_stages, widths=SMALL_WIDTHS)
    return ResNet(small_image_stem(image_shape[0], SMALL_WIDTHS[0]), plan, num_classes)


IMAGENET_FAMILY: Family = {name: partial(build_imagenet, plan) for name, plan in IMAGENET_PLANS.items()}
SMALL_FAMILY: Family = {f"resnet{depth}": partial(build_small, depth) for depth in SMALL_DEPTHS}
