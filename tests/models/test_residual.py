"""What residual networks share: blocks that halve the resolution, and how convolutions are initialised."""

import pytest
import torch

from paceline.models import pyramidnet, residual, wide_resnet
from paceline.models.zoo import build_model

CIFAR = (3, 32, 32)


@pytest.mark.parametrize("block", [residual.BasicBlock, wide_resnet.WideBlock, pyramidnet.PyramidBlock])
def test_both_ways_through_a_block_halve_an_odd_height_alike(block):
    assert block(4, 6, stride=2)(torch.zeros(1, 4, 5, 7)).shape == (1, 6, 3, 4)


def test_convolutions_are_drawn_with_the_variance_of_he():
    torch.manual_seed(0)
    model = build_model("wide-resnet-16-8", num_classes=10, image_shape=CIFAR)
    weight = model.get_parameter("stages.2.0.conv1.weight")  # 256 → 512 channels
    assert weight.std().item() == pytest.approx((2 / (9 * 512)) ** 0.5, rel=0.01)
