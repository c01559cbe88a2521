"""Models of Hugging Face from a config, where transformers is installed."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

import paceline
from paceline.core.errors import ModelError
from paceline.engine.export import read_export, write_export
from paceline.models.zoo import build_model
from paceline.records.folder import RunFolder

TEXT = {"vocab_size": 50, "context": 8}


def test_a_folder_without_a_config_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"config\.json does not exist"):
        build_model(f"hf:{tmp_path}", **TEXT)


@pytest.fixture(scope="module")
def transformers():
    """Return the library, which cannot import its models beside a torchvision for another torch: without that one."""
    with pytest.MonkeyPatch.context() as patch:
        try:
            importlib.import_module("torchvision")
        except (ImportError, RuntimeError, AttributeError):
            patch.setitem(sys.modules, "torchvision", None)
        yield pytest.importorskip("transformers")


@pytest.fixture
def folder(tmp_path, transformers):
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


def test_an_exported_model_is_one_of_transformers(tmp_path, transformers, small_config, monkeypatch):
    config = transformers.GPT2Config(vocab_size=256, n_positions=16, n_embd=16, n_layer=2, n_head=2,
                                     bos_token_id=0, eos_token_id=0)  # fmt: skip
    config.save_pretrained(tmp_path / "gpt")
    text = {"data": "alice", "context": 16, "model": f"hf:{tmp_path / 'gpt'}", "optimizer": "adamw", "lr": 0.001}
    trained = small_config(**text, steps=3, global_batch=8, augment="none")
    run = RunFolder(Path(paceline.train(trained).folder))
    export = read_export(run, trained, checkpoint="last")
    write_export(export, tmp_path / "out", ("safetensors", "state-dict"), {"loss": 1.0})
    monkeypatch.chdir(tmp_path / "out")
    code = Path("README.md").read_text().partition("```python\n")[2].partition("```")[0]
    names: dict = {}
    exec(code, names)
    tokens = torch.arange(16).view(1, 16)
    assert torch.equal(names["model"](tokens).logits, export.model.eval()(tokens))
    again = paceline.train(small_config(**text, init=str(tmp_path / "out"), steps=1, global_batch=8, augment="none"))
    assert again.step == 1
