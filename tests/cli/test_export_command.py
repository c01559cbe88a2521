"""`paceline export`: the files that it writes load in plain PyTorch, and compute what the run computes."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from paceline.models.zoo import build_model
from tests.states import differences, final_state

IMAGES = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def exported(train, run):
    """Return the folder of a trained cnn with a moving average, exported in every format that needs no library."""
    train("--model=cnn", "--steps=3", "--ema=0.5", "--name=small")
    answer = run("export", "small", "--out=out", "--format=safetensors,state-dict,torch-export", "--json")
    assert answer.code == 0, answer.err
    return {path.rpartition("/")[2]: path for path in json.loads(answer.out)["files"]}


def test_every_format_holds_the_weights_that_the_run_evaluates(exported):
    assert list(exported) == ["model.safetensors", "pytorch_model.bin", "model.pt2", "README.md"]
    weights = load_file(exported["model.safetensors"])
    plain = torch.load(exported["pytorch_model.bin"], weights_only=True)
    assert all(torch.equal(weights[name], plain[name]) for name in plain)
    model = build_model("cnn", num_classes=10, image_shape=(1, 8, 8))
    model.load_state_dict(weights)
    program = torch.export.load(exported["model.pt2"]).module()
    torch.testing.assert_close(program(IMAGES), model.eval()(IMAGES))
    assert differences(final_state(Path("runs/small/001"))["ema"], weights) == []


def test_the_card_loads_the_model_as_it_says(exported, monkeypatch):
    card = Path(exported["README.md"]).read_text()
    assert "| `model` | cnn |" in card
    assert "| top1 |" in card
    code = card.partition("```python\n")[2].partition("```")[0]
    monkeypatch.chdir("out")
    names = {}
    exec(code, names)
    assert names["model"](IMAGES).shape == (5, 10)


def test_onnx_is_one_quiet_file_for_any_number_of_samples(train, run):
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    reference = pytest.importorskip("onnx.reference")
    train("--model=mlp", "--steps=3", "--name=small")
    answer = run("export", "small", "--out=out", "--format=onnx")
    assert answer.code == 0, answer.err
    assert answer.out.split() == ["out/model.onnx", "out/README.md"]
    assert sorted(path.name for path in Path("out").iterdir()) == ["README.md", "model.onnx"]
    model = build_model("mlp", num_classes=10, image_shape=(1, 8, 8))
    model.load_state_dict(final_state(Path("runs/small/001"))["model"])
    (computed,) = reference.ReferenceEvaluator(onnx.load("out/model.onnx")).run(None, {"input": IMAGES.numpy()})
    torch.testing.assert_close(torch.from_numpy(computed), model.eval()(IMAGES), rtol=1e-4, atol=1e-5)


def test_an_unknown_format_and_a_missing_library_are_explained(train, run):
    train("--steps=1", "--name=tiny")
    assert run("export", "tiny", "--format=pickle").message == "there is no format pickle"
    if importlib.util.find_spec("onnx") is None:
        answer = run("export", "tiny", "--format=onnx")
        assert (answer.message, answer.hint) == ("--format onnx needs onnx", "pip install onnx onnxscript")


def test_an_exported_model_is_where_another_run_starts(exported, train):
    answer = train("--model=cnn", "--steps=1", f"--init={exported['model.safetensors']}", "--head=new")
    report = f"--init {exported['model.safetensors']}: 18 of 20 tensors; new head: linear.weight, linear.bias"
    assert report in answer.out.splitlines()
