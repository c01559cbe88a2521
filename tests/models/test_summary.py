"""The layer table as it is printed, and the arithmetic of known models."""

import re

import pytest
import torch
from torch import nn

from paceline.models.summary import forward_flops, layer_costs, layer_table, num_parameters
from paceline.models.zoo import build_model

# The rows that seed S4 prints, in its order; it drops the two ones at the end of a projection's shape.
S4_ROWS = [
    ("conv1.weight", "[16, 3, 3, 3]", "432"),
    *[(f"conv{1 + index % 2}.weight", "[16, 16, 3, 3]", "2,304") for index in range(6)],
    ("conv1.weight", "[32, 16, 3, 3]", "4,608"),
    ("conv2.weight", "[32, 32, 3, 3]", "9,216"),
    ("shortcut.weight", "[32, 16, 1, 1]", "512"),
    *[(f"conv{1 + index % 2}.weight", "[32, 32, 3, 3]", "9,216") for index in range(4)],
    ("conv1.weight", "[64, 32, 3, 3]", "18,432"),
    ("conv2.weight", "[64, 64, 3, 3]", "36,864"),
    ("shortcut.weight", "[64, 32, 1, 1]", "2,048"),
    *[(f"conv{1 + index % 2}.weight", "[64, 64, 3, 3]", "36,864") for index in range(4)],
    ("linear.weight", "[10, 64]", "640"),
    ("linear.bias", "[10]", "10"),
]


@pytest.fixture(scope="module")
def lines():
    with torch.device("meta"):
        model = build_model("resnet20", num_classes=10, image_shape=(3, 32, 32))
    return layer_table(model).splitlines()


def test_the_table_of_resnet20_has_the_rows_of_seed_s4_in_order(lines):
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines[3:-3]]
    without_norms = [row for row in rows if "norm" not in row[0]]
    shown = [(".".join(name.split(".")[-2:]), shape, count) for name, shape, count in without_norms]
    assert shown == S4_ROWS


def test_the_total_of_resnet20_is_that_of_seed_s4(lines):
    assert lines[-1] == "Total params: 272,474"


def test_names_are_full_and_columns_end_where_their_heading_ends(lines):
    heading = lines[1]
    row = next(line for line in lines if " stages.1.0.shortcut.weight " in line)
    assert heading.split() == ["Layer.Parameter", "Shape", "Param#"]
    assert heading.index("Layer.Parameter") + len("Layer.Parameter") == row.index("weight") + len("weight")
    assert len(heading) == len(row)
    assert lines[0] == lines[2] == lines[-3] == "-" * len(lines[0])


def test_a_shared_parameter_counts_once():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    assert num_parameters(model) == 16
    assert layer_table(model).endswith("Total params: 16")


def test_a_model_without_parameters_has_an_empty_table():
    assert layer_table(nn.ReLU()).endswith("Total params: 0")


@pytest.mark.parametrize(
    ("name", "macs"),
    # torchvision's documentation, "GFLOPS" of the weights (its word for 10⁹ multiply-accumulates): 1.81, 3.66, 4.09.
    [("resnet18", 1.81e9), ("resnet34", 3.66e9), ("resnet50", 4.09e9)],
)
def test_imagenet_networks_cost_what_torchvision_says(name, macs):
    with torch.device("meta"):
        model = build_model(name, num_classes=1000, image_shape=(3, 224, 224))
    assert forward_flops(model, {"image_shape": (3, 224, 224)}) == pytest.approx(2 * macs, rel=0.003)


def test_the_perceptron_costs_one_multiplication_and_addition_per_weight():
    model = build_model("mlp", num_classes=10, image_shape=(1, 8, 8))
    assert forward_flops(model, {"image_shape": (1, 8, 8)}) == 2 * (64 * 128 + 128 * 10)


def test_counting_leaves_the_model_as_it_was():
    model = build_model("cnn", num_classes=10, image_shape=(1, 8, 8))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    forward_flops(model, {"image_shape": (1, 8, 8)})
    assert model.training
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_layer_costs_are_in_order_and_add_up_to_the_whole_model():
    model = build_model("resnet20", num_classes=10, image_shape=(3, 32, 32))
    costs = layer_costs(model, {"image_shape": (3, 32, 32)})
    parameters, macs = (sum(column) for column in zip(*costs, strict=True))
    assert costs[0] == (432, 432 * 32 * 32)
    assert costs[-1] == (650, 640)
    assert (parameters, 2 * macs) == (num_parameters(model), forward_flops(model, {"image_shape": (3, 32, 32)}))
