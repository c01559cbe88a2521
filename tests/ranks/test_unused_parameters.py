"""Models that do not use all of their parameters, in every step and on every rank, without --exact bitwise."""

import pytest
import torch

from paceline.engine.checkpoint import Checkpoints, load_checkpoint
from paceline.records.folder import RunFolder
from tests.ranks.runs import TIGHT, losses, rank_settings, train

MODELS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes, image_shape):
        super().__init__()
        self.inner, self.extra, self.outer = nn.Linear(64, 16), nn.Linear(16, 16), nn.Linear(16, num_classes)

    def forward(self, images):
        return self.outer(self.through(torch.tanh(self.inner(images.flatten(1))), images))

class Unused(Net):
    def through(self, hidden, images):
        return hidden

class Late(Net):
    steps = 0

    def through(self, hidden, images):
        self.steps += self.training
        return hidden + self.extra(hidden) if self.steps > 2 else hidden

class Some(Net):
    def through(self, hidden, images):  # by chance on one rank, on all, or on none; a branch for each sample's own data
        mask = images[:, 0, 2, 3] > 0.9
        return hidden + torch.zeros_like(hidden).index_put((mask,), self.extra(hidden[mask])) if mask.any() else hidden
"""


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "models.py"
    path.write_text(MODELS)
    return lambda name, **more: rank_settings(
        tmp_path, model=f"{path}:{name}", steps=6, global_batch=8, name=name, **more
    )


def weights(folder):
    return load_checkpoint(Checkpoints(RunFolder(folder).checkpoints, keep=1).named("last"))["model"]


@pytest.mark.parametrize(("name", "optimizer"), [("Unused", "sgd"), ("Late", "sgd"), ("Some", "adamw")])
def test_two_ranks_train_as_one_where_parameters_are_not_used_everywhere(ranks, settings, name, optimizer):
    lr = 0.02 if optimizer == "sgd" else 0.001
    alone, both = (train(ranks, size, settings(name, optimizer=optimizer, lr=lr)) for size in (1, 2))
    assert losses(alone) == pytest.approx(losses(both), rel=TIGHT)
    for tensor, other in zip(weights(alone).values(), weights(both).values(), strict=True):
        torch.testing.assert_close(tensor, other, rtol=1e-3, atol=1e-5)


def test_parameters_that_nobody_uses_are_named_and_keep_their_values(ranks, settings):
    alone, both = (train(ranks, size, settings("Unused")) for size in (1, 2))
    for folder in (alone, both):
        text = RunFolder(folder).log.read_text()
        assert "without a gradient until step 6, not updated: extra.weight, extra.bias" in text
    assert torch.equal(weights(alone)["extra.weight"], weights(both)["extra.weight"])
    late = train(ranks, 1, settings("Late"))
    assert not torch.equal(weights(alone)["extra.weight"], weights(late)["extra.weight"])
    assert "without a gradient" not in RunFolder(late).log.read_text()
