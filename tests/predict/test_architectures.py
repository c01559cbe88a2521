"""Shapes of known models: their sizes are those that are quoted, under any spelling of their names."""

import pytest

from paceline.predict.architectures import even, find_shape


@pytest.mark.parametrize(
    ("name", "millions", "giga_macs"),
    [("ResNet-50", 25.6, 4.1), ("resnet101", 44.5, 7.8), ("VGG16", 138.4, 15.5), ("bert_large", 335, 40)],
)
def test_known_models_have_the_size_that_is_quoted(name, millions, giga_macs):
    layers = find_shape(name)
    assert layers is not None
    assert sum(layer.parameters for layer in layers) / 1e6 == pytest.approx(millions, rel=0.01)
    assert sum(layer.macs for layer in layers) / 1e9 == pytest.approx(giga_macs, rel=0.02)


@pytest.mark.parametrize(
    ("name", "known"),
    [("ResNet_101", "resnet101"), ("BERT", "bert-base"), ("Inception v3", "inception3"), ("GPT2-small", "gpt2")],
)
def test_a_name_is_found_in_any_spelling(name, known):
    assert find_shape(name) == find_shape(known) is not None


def test_an_unknown_name_has_no_shape():
    assert find_shape("resnet") is None


def test_a_model_known_by_its_size_has_that_size():
    layers = even(30e6, layers=3)
    assert [layer.parameters for layer in layers] == [10e6] * 3
    assert len({layer.macs for layer in layers}) == 1
