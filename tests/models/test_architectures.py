"""The architectures of the zoo, held against the literature."""

import random

import numpy as np
import pytest
import torch

from paceline.models import residual
from paceline.models.summary import num_parameters
from paceline.models.zoo import build_model, list_classifiers

CIFAR = (3, 32, 32)
DIGITS = (1, 8, 8)
ONE_OF_EACH_KIND = ["mlp", "cnn", "resnet20", "resnet18", "resnet50", "wide-resnet-16-8", "pyramidnet110-a84"]


def build_without_memory(name, num_classes, image_shape):
    with torch.device("meta"):
        return build_model(name, num_classes=num_classes, image_shape=image_shape)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        # resnet20 is printed by seed S4 ("Total params: 272,474"): He et al. 2016 with option B, a projection and its
        # norm. Table 6 there says 0.27, 0.46, 0.66, 0.85 and 1.7 million for option A; B adds 2,752 to each.
        ("resnet20", 272_474),
        ("resnet32", 466_906),
        ("resnet44", 661_338),
        ("resnet56", 855_770),
        ("resnet110", 1_730_714),
        # kuangliu/pytorch-cifar and every copy of its resnet with a 3×3 stem.
        ("resnet18", 11_173_962),
        # Zagoruyko and Komodakis 2016: 11.0 and 36.5 million; osmr/imgclsmob asserts 28-10 to the last digit.
        ("wide-resnet-16-8", 10_961_370),
        ("wide-resnet-28-10", 36_479_194),
        # Han et al. 2017; osmr/imgclsmob asserts both to the last digit (pyramidnet_cifar.py).
        ("pyramidnet110-a84", 3_904_446),
        ("pyramidnet110-a270", 28_485_477),
    ],
)
def test_parameter_counts_for_cifar10_are_those_of_the_literature(name, count):
    assert num_parameters(build_without_memory(name, 10, CIFAR)) == count


SHAPES = [
    (name, shape) for name in list_classifiers() for shape in (DIGITS, CIFAR) if (name, shape) != ("fastnet", DIGITS)
]
"""fastnet halves an image three times, so it refuses digits."""


@pytest.mark.parametrize(("name", "image_shape"), SHAPES)
def test_every_model_gives_one_score_per_class_of_digits_and_cifar(name, image_shape):
    model = build_without_memory(name, 7, image_shape).eval()
    with torch.no_grad():
        assert model(torch.zeros(2, *image_shape, device="meta")).shape == (2, 7)


@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
def test_a_gradient_reaches_every_parameter(name):
    torch.manual_seed(0)
    model = build_model(name, num_classes=10, image_shape=DIGITS).eval()
    for block in model.modules():
        if isinstance(block, residual.BasicBlock | residual.Bottleneck):
            torch.nn.init.ones_(block.last_norm.weight)  # a scale of 0 blocks the gradient in the first step only
    # In evaluation mode a shift before another batch norm is not cancelled, so its gradient shows that it is in use.
    model(torch.randn(2, *DIGITS)).sum().backward()
    without = [key for key, value in model.named_parameters() if value.grad is None or not value.grad.any()]
    assert without == []


def _state(name, seed):
    torch.manual_seed(seed)
    return build_model(name, num_classes=10, image_shape=DIGITS).state_dict()


@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
def test_weights_depend_on_the_seed_of_torch_and_on_nothing_else(name):
    first = _state(name, seed=1)
    random.seed(99)
    np.random.seed(99)
    second = _state(name, seed=1)
    other = _state(name, seed=2)
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)
