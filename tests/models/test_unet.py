"""The U-Net: scores for every pixel, at any size of the image."""

import pytest
import torch

from paceline.models.zoo import build_model


@pytest.mark.parametrize("size", [(32, 32), (33, 17), (8, 8)])
def test_every_pixel_gets_scores(size):
    model = build_model("unet-nano", num_classes=4, image_shape=(1, *size))
    assert model(torch.randn(2, 1, *size)).shape == (2, 4, *size)


def test_outputs_need_not_be_classes():
    model = build_model("cnn", num_outputs=2, image_shape=(1, 32, 32))
    assert model(torch.randn(2, 1, 32, 32)).shape == (2, 2)
