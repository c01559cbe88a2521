"""Patterns over layers: freezing, factors on the learning rate, checkpointed activations."""

import copy
import dataclasses

import pytest
import torch

from paceline.core.config import Config
from paceline.core.errors import ConfigError, SettingError
from paceline.engine.layer_patterns import apply_patterns, checkpoint_activations, lr_factors
from paceline.engine.optimizer import parameter_groups
from paceline.models.zoo import build_model

IMAGES = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def cnn():
    torch.manual_seed(1)
    return build_model("cnn", num_classes=10, image_shape=(1, 8, 8))


def frozen_cnn(*patterns):
    model = cnn()
    apply_patterns(model, Config(model="cnn", freeze=patterns))
    return model


@pytest.mark.parametrize("pattern", ["layer1", "layer1.*"])
def test_a_pattern_freezes_a_layer_and_its_batch_norm(pattern):
    model = frozen_cnn(pattern)
    assert {name for name, p in model.named_parameters() if not p.requires_grad} == {
        "layer1.conv.weight", "layer1.norm.weight", "layer1.norm.bias",
    }  # fmt: skip
    before = copy.deepcopy(model.state_dict())
    model.eval()
    model.train()
    model(IMAGES)
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {f"layer{number}.norm.{key}" for number in (2, 3) for key in (
        "running_mean", "running_var", "num_batches_tracked")}  # fmt: skip


def test_a_copy_of_a_frozen_model_stays_frozen():
    model = copy.deepcopy(frozen_cnn("layer1")).train()
    norm = model.get_submodule("layer1.norm")
    assert not norm.training
    assert norm.train() is norm


@pytest.mark.parametrize("setting", ["freeze", "checkpoint_activations"])
def test_a_pattern_that_matches_nothing_is_refused(setting):
    with pytest.raises(ConfigError, match="layer9 matches nothing in the model") as caught:
        apply_patterns(cnn(), dataclasses.replace(Config(model="cnn"), **{setting: ("layer1", "layer9")}))
    assert "did you mean layer" in (caught.value.hint or "")


def test_freezing_everything_is_refused():
    with pytest.raises(ConfigError, match="matches every parameter of cnn"):
        frozen_cnn("*")


def test_factors_split_the_parameters_into_groups():
    config = Config(model="cnn", lr_for=("*=0.5", "linear=10"), no_decay_norm=True)
    groups = parameter_groups(cnn(), config)
    assert [(group["lr_factor"], group["weight_decay"], len(group["params"])) for group in groups] == [
        (0.5, 5e-4, 3), (10.0, 5e-4, 1), (0.5, 0.0, 6), (10.0, 0.0, 1),
    ]  # fmt: skip


def test_a_factor_for_nothing_is_refused():
    with pytest.raises(ConfigError, match="--lr-for head matches nothing"):
        lr_factors(cnn(), Config(model="cnn", lr_for=("head=10",)))


@pytest.mark.parametrize("text", ["layer1", "=1", "layer1=fast", "layer1=0", "layer1=-1", "layer1=inf", "layer1=nan"])
def test_malformed_factors_are_refused(text):
    with pytest.raises(SettingError, match="is not PATTERN=FACTOR"):
        Config(lr_for=(text,))


def test_a_new_head_needs_weights():
    with pytest.raises(ConfigError, match="no effect without --init"):
        Config(head="new")


@pytest.mark.parametrize("patterns", [("layer?",), ("layer1", "layer1.*", "linear")])
def test_checkpointed_activations_change_neither_gradients_nor_buffers(patterns):
    results = []
    for chosen in ((), patterns):
        model = cnn()
        if chosen:
            checkpoint_activations(model, Config(model="cnn", checkpoint_activations=chosen))
        for _ in range(2):
            torch.manual_seed(2)
            model(IMAGES).square().sum().backward()
        gradients = {name: p.grad for name, p in model.named_parameters()}
        results.append(gradients | dict(model.named_buffers()))
    assert all(torch.equal(tensor, results[1][name]) for name, tensor in results[0].items())
