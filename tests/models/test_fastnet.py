"""The fast network: its size, its gradients, and what it learns from a first look at the images."""

import pytest
import torch
from torch.nn import functional

import paceline
from paceline.core.config import Config
from paceline.core.errors import ModelError
from paceline.data.catalog import open_data, split_data
from paceline.engine.checkpoint import Checkpoints, load_checkpoint
from paceline.engine.model_setup import first_look, prepare_model
from paceline.models.fastnet import FastNet
from paceline.models.summary import forward_flops
from paceline.models.zoo import build_model

pytestmark = pytest.mark.usefixtures("one_thread")


def build(channels=3):
    torch.manual_seed(0)
    model = build_model("fastnet", num_classes=10, image_shape=(channels, 32, 32))
    assert isinstance(model, FastNet)
    return model


def images(num=64, channels=3):
    """Return images whose pixels resemble their neighbours, as those of photographs do."""
    noise = torch.randn(num, channels, 8, 8, generator=torch.Generator().manual_seed(1))
    return functional.interpolate(noise, size=(32, 32), mode="bilinear")


def test_the_network_has_the_size_of_its_plan():
    model = build()
    whitening = 24 * 3 * 2 * 2
    convolutions = 9 * (24 * 32 + 32 * 32 + 32 * 80 + 80 * 80 + 80 * 160 + 160 * 160)
    biases, linear = 2 * (32 + 80 + 160), 160 * 10
    assert sum(p.numel() for p in model.parameters()) == whitening + convolutions + biases + linear == 444_800
    assert forward_flops(model, {"image_shape": (3, 32, 32)}) == pytest.approx(49.4e6, rel=0.01)


def test_everything_but_the_whitening_gets_a_gradient():
    model = build()
    functional.cross_entropy(model(images()), torch.arange(64) % 10).backward()
    without = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert without == {"whitening.weight"}
    assert all(bool(p.grad.isfinite().all()) and bool(p.grad.any()) for p in model.parameters() if p.grad is not None)


def test_a_first_look_whitens_the_patches():
    model = build()
    model.prepare(images(600))
    outputs = model.whitening(images(600)).transpose(0, 1).flatten(1)[:3].double()
    moments = outputs @ outputs.T / outputs.shape[1]
    assert torch.allclose(moments, torch.eye(3, dtype=torch.float64), atol=0.02)


def test_a_first_look_gives_the_same_bits_every_time():
    first, second = build(), build()
    before = first.whitening.weight.clone()
    first.prepare(images())
    second.prepare(images().contiguous(memory_format=torch.channels_last))
    assert not torch.equal(first.whitening.weight, before)
    assert torch.equal(first.whitening.weight, second.whitening.weight)


@pytest.mark.parametrize("channels", [1, 3])
def test_grey_and_colour_images_are_taken(channels):
    model = build(channels)
    model.prepare(images(8, channels))
    assert model(images(8, channels)).shape == (8, 10)


def test_images_that_are_too_small_are_refused():
    with pytest.raises(ModelError, match="8×8 pixels are too few"):
        build_model("fastnet", num_classes=10, image_shape=(1, 8, 8))


LOOKING = """
import torch
from torch import nn
class Net(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(nn.Flatten(), nn.Linear(64, num_classes))
        self.register_buffer("seen", torch.zeros(3))
    def prepare(self, images):
        self.seen.copy_(torch.tensor([len(images), images.mean(), images.std()]))
"""


@pytest.fixture
def looking(tmp_path):
    (tmp_path / "looking.py").write_text(LOOKING)
    return f"{tmp_path / 'looking.py'}:Net"


def test_any_model_may_take_a_first_look_at_images_that_are_not_augmented(looking, tmp_path):
    seen = []
    for augment in ("none", "crop1,erase0.5"):
        config = Config(model=looking, augment=augment, seed=len(seen))
        splits = split_data(open_data(config), valid_split=0.1)
        seen.append(prepare_model(config, splits, torch.device("cpu"), task_name="classification").state_dict()["seen"])
    assert torch.equal(*seen)
    assert seen[0].tolist() == pytest.approx([len(splits.train), 0, 1], abs=0.05)
    assert len(first_look(splits.train)) == len(splits.train) < 2048


def test_what_was_seen_is_in_the_checkpoint(looking, tmp_path):
    result = paceline.train(
        Config(model=looking, epochs=1, threads=1, track=(), runs_dir=tmp_path / "runs", device="cpu")
    )
    state = load_checkpoint(Checkpoints(result.folder / "checkpoints", keep=1).named("last"))
    assert state["model"]["seen"][0] > 1000
