"""Models of Hugging Face from a config, where transformers is installed."""

import pytest
import torch

from paceline.core.errors import ModelError
from paceline.models.zoo import build_model

TEXT = {"vocab_size": 50, "context": 8}


def test_a_folder_without_a_config_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"config\.json does not exist"):
        build_model(f"hf:{tmp_path}", **TEXT)


@pytest.fixture
def folder(tmp_path):
    transformers = pytest.importorskip("transformers")
    try:
        transformers.GPT2LMHeadModel  # noqa: B018 - imported here
    except ImportError as cause:
        pytest.skip(f"transformers cannot import its models, as beside a torchvision for another torch: {cause}")
    config = transformers.GPT2Config(vocab_size=50, n_positions=8, n_embd=16, n_layer=2, n_head=2)
    config.save_pretrained(tmp_path)
    return tmp_path


def test_a_language_model_is_built_from_its_config_and_learns(folder):
    torch.manual_seed(0)
    model = build_model(f"hf:{folder}", **TEXT)
    tokens, losses = torch.arange(8).repeat(4, 1), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(5):
        loss = torch.nn.functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0] - 0.2


@pytest.mark.parametrize(
    ("facts", "message"),
    [({"vocab_size": 51}, "vocabulary of 50, but the data one of 51"), ({"context": 9}, "at most 8")],
)
def test_data_that_it_has_no_embeddings_for_is_refused(folder, facts, message):
    with pytest.raises(ModelError, match=message):
        build_model(f"hf:{folder}", **(TEXT | facts))


def test_a_language_model_refuses_images(folder):
    with pytest.raises(ModelError, match="cannot be built for this data"):
        build_model(f"hf:{folder}", num_classes=10, image_shape=(3, 32, 32))
