"""The residual networks for small images: resnet20 to resnet110, 16 to 64 channels wide.

He et al. 2016, section 4.2, with projection shortcuts (their option B) instead of zero padding: a 1×1 convolution and
its normalisation where a stage begins. Every normalisation starts at scale 1, as theirs did.
"""

from functools import partial

from paceline.models.family import Family, ImageShape
from paceline.models.residual import BasicBlock, Plan, ResNet, small_image_stem

DEPTHS = (20, 32, 44, 56, 110)
NUM_STAGES = 3
WIDTHS = (16, 32, 64)


def build(depth: int, num_classes: int, image_shape: ImageShape) -> ResNet:
    """Return the network with this many weighted layers: stem, classifier and two in each block."""
    num_blocks = (depth - 2) // (2 * NUM_STAGES)
    plan = Plan(block=BasicBlock, num_blocks=(num_blocks,) * NUM_STAGES, widths=WIDTHS)
    return ResNet(small_image_stem(image_shape[0], WIDTHS[0]), plan, num_classes)


FAMILY: Family = {f"resnet{depth}": partial(build, depth) for depth in DEPTHS}
