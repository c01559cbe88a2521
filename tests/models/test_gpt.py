"""The transformers: parameters of GPT-2, causality, and what they refuse."""

import pytest
import torch

from paceline.core.errors import ModelError
from paceline.models.gpt import SHAPES, continue_tokens
from paceline.models.summary import num_parameters
from paceline.models.zoo import build_model, usual_facts
from paceline.predict.architectures import find_shape


def nano(**facts):
    torch.manual_seed(0)
    return build_model("gpt-nano", **({"vocab_size": 50, "context": 16} | facts))


def test_gpt2_has_the_parameters_of_the_published_model():
    with torch.device("meta"):
        model = build_model("gpt2", **usual_facts("gpt2"))
    assert num_parameters(model) == 124_439_808
    assert sum(layer.parameters for layer in find_shape("gpt2") or []) == pytest.approx(124_439_808, rel=1e-3)


@pytest.mark.parametrize("name", SHAPES)
def test_every_size_is_built_and_named(name):
    with torch.device("meta"):
        model = build_model(name, **usual_facts(name))
        logits = model(torch.zeros(2, 5, dtype=torch.long))
    assert logits.shape == (2, 5, usual_facts(name)["vocab_size"])


def test_a_token_does_not_depend_on_those_after_it():
    model, tokens = nano().eval(), torch.arange(32).view(2, 16)
    changed = tokens.clone()
    changed[:, 9:] = 1
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


def test_the_first_loss_is_that_of_guessing():
    tokens = torch.randint(50, (8, 17), generator=torch.Generator().manual_seed(1))
    logits = nano()(tokens[:, :-1])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    assert abs(loss.item() - torch.tensor(50.0).log().item()) < 0.1


def test_the_embedding_is_stored_once_and_trained_as_both_layers():
    model = nano()
    assert [name for name, tensor in model.state_dict().items() if tensor.shape == (50, 64)] == ["tokens.weight"]
    model(torch.zeros(1, 3, dtype=torch.long)).sum().backward()
    assert (model.get_parameter("tokens.weight").grad != 0).all(dim=1).all()


def test_text_is_continued_token_by_token():
    model, generator = nano().eval(), torch.Generator().manual_seed(0)
    tokens = torch.zeros(1, 1, dtype=torch.long)
    for _ in range(20):  # longer than the context
        tokens = continue_tokens(model, tokens, context=16, temperature=1.0, generator=generator)
    assert tokens.shape == (1, 21)
    greedy = continue_tokens(model, tokens, context=16, temperature=0, generator=generator)
    assert greedy[0, -1] == model(tokens[:, -16:])[0, -1].argmax()


def test_images_are_refused():
    with pytest.raises(ModelError, match="gpt-nano takes token ids, but the data has no vocab_size and no context"):
        build_model("gpt-nano", num_classes=10, image_shape=(3, 32, 32))


def test_a_classifier_refuses_text():
    with pytest.raises(ModelError, match="resnet20 takes images"):
        build_model("resnet20", vocab_size=256, context=16)
