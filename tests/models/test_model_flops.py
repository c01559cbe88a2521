"""The arithmetic of known models."""

import pytest
import torch

from paceline.models.flops import forward_flops, forward_macs
from paceline.models.zoo import build_model


@pytest.mark.parametrize(
    ("name", "macs"),
    # torchvision's documentation, "GFLOPS" of the weights (its word for 10⁹ multiply-accumulates): 1.81, 3.66, 4.09.
    [("resnet18", 1.81e9), ("resnet34", 3.66e9), ("resnet50", 4.09e9)],
)
def test_imagenet_networks_cost_what_torchvision_says(name, macs):
    with torch.device("meta"):
        model = build_model(name, num_classes=1000, image_shape=(3, 224, 224))
    assert forward_macs(model, (3, 224, 224)) == pytest.approx(macs, rel=0.003)


def test_the_perceptron_costs_one_multiplication_and_addition_per_weight():
    model = build_model("mlp", num_classes=10, image_shape=(1, 8, 8))
    assert forward_flops(model, (1, 8, 8)) == 2 * (64 * 128 + 128 * 10)


def test_counting_leaves_the_model_as_it_was():
    model = build_model("cnn", num_classes=10, image_shape=(1, 8, 8))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    forward_flops(model, (1, 8, 8))
    assert model.training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
