"""The residual networks: their stems, their size, and the start of their residuals."""

import pytest
import torch

from paceline.models import residual
from paceline.models.summary import num_parameters
from paceline.models.zoo import build_model

DIGITS = (1, 8, 8)
IMAGENET = (3, 224, 224)


def build_without_memory(name, num_classes, image_shape):
    with torch.device("meta"):
        return build_model(name, num_classes=num_classes, image_shape=image_shape)


@pytest.mark.parametrize(
    ("name", "count"),
    # torchvision's documentation, "num_params" of each weight entry.
    [("resnet18", 11_689_512), ("resnet34", 21_797_672), ("resnet50", 25_557_032)],
)
def test_parameter_counts_for_imagenet_are_those_of_torchvision(name, count):
    assert num_parameters(build_without_memory(name, 1000, IMAGENET)) == count


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


@pytest.mark.parametrize(("name", "scale"), [("resnet18", 0.0), ("resnet50", 0.0), ("resnet20", 1.0)])
def test_only_the_imagenet_networks_start_with_silent_residuals(name, scale):
    model = build_model(name, num_classes=10, image_shape=DIGITS)
    blocks = [block for block in model.modules() if isinstance(block, residual.BasicBlock | residual.Bottleneck)]
    assert blocks
    assert all((block.last_norm.weight == scale).all() for block in blocks)
