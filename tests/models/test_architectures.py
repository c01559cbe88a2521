"""The architectures of the zoo, held against the literature."""

import random

import numpy as np
import pytest
import torch

from paceline.models import pyramidnet, residual, wide_resnet
from paceline.models.table import num_parameters
from paceline.models.zoo import build_model, list_models

CIFAR = (3, 32, 32)
DIGITS = (1, 8, 8)
IMAGENET = (3, 224, 224)
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


@pytest.mark.parametrize(
    ("name", "count"),
    # torchvision's documentation, "num_params" of each weight entry.
    [("resnet18", 11_689_512), ("resnet34", 21_797_672), ("resnet50", 25_557_032)],
)
def test_parameter_counts_for_imagenet_are_those_of_torchvision(name, count):
    assert num_parameters(build_without_memory(name, 1000, IMAGENET)) == count


def test_the_perceptron_for_digits_is_64_128_10():
    model = build_model("mlp", num_classes=10, image_shape=DIGITS)
    assert [tuple(parameter.shape) for parameter in model.parameters()] == [(128, 64), (128,), (10, 128), (10,)]


def test_the_small_cnn_has_batch_norm_and_dropout():
    kinds = {type(module) for module in build_model("cnn", num_classes=10, image_shape=DIGITS).modules()}
    assert {torch.nn.BatchNorm2d, torch.nn.Dropout} <= kinds


SHAPES = [(name, shape) for name in list_models() for shape in (DIGITS, CIFAR) if (name, shape) != ("fastnet", DIGITS)]
"""fastnet halves an image three times, so it refuses digits."""


@pytest.mark.parametrize(("name", "image_shape"), SHAPES)
def test_every_model_gives_one_score_per_class_of_digits_and_cifar(name, image_shape):
    model = build_without_memory(name, 7, image_shape).eval()
    with torch.no_grad():
        assert model(torch.zeros(2, *image_shape, device="meta")).shape == (2, 7)


@pytest.mark.parametrize("block", [residual.BasicBlock, wide_resnet.WideBlock, pyramidnet.PyramidBlock])
def test_both_ways_through_a_block_halve_an_odd_height_alike(block):
    assert block(4, 6, stride=2)(torch.zeros(1, 4, 5, 7)).shape == (1, 6, 3, 4)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_the_imagenet_stem_leaves_a_7_by_7_map_of_a_224_pixel_image(name):
    model = build_without_memory(name, 1000, IMAGENET)
    assert isinstance(model, residual.ResNet)
    images = torch.zeros(1, *IMAGENET, device="meta")
    assert model.stages(model.stem(images)).shape[-2:] == (7, 7)
    assert model(images).shape == (1, 1000)


@pytest.mark.parametrize(("size", "stem_size"), [(64, 64), (65, 17)])
def test_images_up_to_64_pixels_keep_their_resolution_in_the_stem(size, stem_size):
    model = build_without_memory("resnet18", 10, (3, size, size))
    assert isinstance(model, residual.ResNet)
    assert model.stem(torch.zeros(1, 3, size, size, device="meta")).shape[-2:] == (stem_size, stem_size)


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


def test_convolutions_are_drawn_with_the_variance_of_he():
    torch.manual_seed(0)
    model = build_model("wide-resnet-16-8", num_classes=10, image_shape=CIFAR)
    weight = model.get_parameter("stages.2.0.conv1.weight")  # 256 → 512 channels
    assert weight.std().item() == pytest.approx((2 / (9 * 512)) ** 0.5, rel=0.01)


@pytest.mark.parametrize(("name", "scale"), [("resnet18", 0.0), ("resnet50", 0.0), ("resnet20", 1.0)])
def test_only_the_imagenet_networks_start_with_silent_residuals(name, scale):
    model = build_model(name, num_classes=10, image_shape=DIGITS)
    blocks = [block for block in model.modules() if isinstance(block, residual.BasicBlock | residual.Bottleneck)]
    assert blocks
    assert all((block.last_norm.weight == scale).all() for block in blocks)
