"""Which modules fsdp gathers one at a time."""

import pytest
from torch import nn

from paceline.core.errors import ModelError
from paceline.models.zoo import build_model, usual_facts
from paceline.parallel.shard_units import find_units


def block(width: int = 512) -> nn.Module:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(width, width)

    return Block()


def repeated(*blocks: nn.Module) -> nn.Module:
    model = nn.Module()
    model.layers = nn.ModuleList(blocks)
    return model


def test_the_blocks_of_a_transformer_are_its_units():
    model = build_model("gpt2", **usual_facts("gpt2"))
    assert find_units(model, name="gpt2") == list(model.get_submodule("blocks").children())


def test_small_models_are_gathered_at_once():
    for name in ("mlp", "cnn", "gpt-nano", "resnet20"):
        assert find_units(build_model(name, **usual_facts(name)), name=name) == []


def test_blocks_that_share_weights_are_no_units():
    kind = type(one := block())
    two, three = kind(), kind()
    assert find_units(repeated(one, two, three), name="m") == [one, two, three]
    three.inner.weight = one.inner.weight  # pyright: ignore[reportAttributeAccessIssue]
    assert find_units(repeated(one, two, three), name="m") == [two]
    assert find_units(repeated(one, two, two), name="m") == [one]


def test_a_model_names_its_units():
    model = repeated(block(4), block(4))
    model.fsdp_units = ("layers.*",)  # pyright: ignore[reportArgumentType]
    assert find_units(model, name="m") == list(model.layers)  # pyright: ignore[reportArgumentType]
    model.fsdp_units = ("blocks.*",)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ModelError, match=r"names 'blocks\.\*', which no module matches"):
        find_units(model, name="m")
    model.fsdp_units = "layers.*"  # pyright: ignore[reportArgumentType]
    with pytest.raises(ModelError, match="not a list of module names"):
        find_units(model, name="m")
