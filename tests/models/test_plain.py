"""The networks without shortcuts."""

import torch

from paceline.models.zoo import build_model

DIGITS = (1, 8, 8)


def test_the_perceptron_for_digits_is_64_128_10():
    model = build_model("mlp", num_classes=10, image_shape=DIGITS)
    assert [tuple(parameter.shape) for parameter in model.parameters()] == [(128, 64), (128,), (10, 128), (10,)]


def test_the_small_cnn_has_batch_norm_and_dropout():
    kinds = {type(module) for module in build_model("cnn", num_classes=10, image_shape=DIGITS).modules()}
    assert {torch.nn.BatchNorm2d, torch.nn.Dropout} <= kinds
