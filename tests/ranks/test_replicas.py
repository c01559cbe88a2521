"""The replica check on real ranks: it finds one flipped bit, names the tensor, and accepts healthy runs."""

from unittest.mock import patch

import pytest
import torch

from paceline.core.errors import RanksError
from paceline.core.setting_types import Interval
from paceline.engine.loop import Training
from paceline.models.zoo import build_model
from paceline.parallel.buffers import average_buffers
from paceline.parallel.replicas import Mismatch, check_replicas
from tests.ranks.runs import rank_settings, train_rank


def check_with_flipped_bit(team, bit):
    torch.manual_seed(0)
    model = build_model("cnn", num_classes=10, image_shape=(1, 8, 8))
    state = model.state_dict()
    name = next(key for key in state if key.endswith("conv.weight"))
    if bit is not None and team.world.rank == 1:
        state[name].view(torch.int32).flatten()[17] ^= 1 << bit
    return check_replicas(state.items(), team), name


def check_with_missing_tensor(team):
    tensors = {"everywhere": torch.ones(1), f"only{team.world.rank % 2}": torch.ones(1)}
    return check_replicas(tensors.items(), team)


def test_equal_replicas_pass(ranks):
    assert [found for found, _ in ranks(3).run(check_with_flipped_bit, None)] == [[]] * 3


def test_one_flipped_bit_on_one_rank_is_caught_and_named_on_every_rank(ranks):
    for bit in (0, 30):
        for found, name in ranks(3).run(check_with_flipped_bit, bit):
            assert found == [Mismatch(name=name, groups=((0, 2), (1,)))]
            assert found[0].sides == "ranks 0,2 against rank 1"


def test_a_tensor_that_some_ranks_lack_is_named(ranks):
    for found in ranks(3).run(check_with_missing_tensor):
        assert found == [Mismatch(name="only0", groups=((0, 2), (1,))), Mismatch(name="only1", groups=((0, 2), (1,)))]


COUNTING = """
import torch

class Net(torch.nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(64, num_classes), torch.nn.BatchNorm1d(64)
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, images):
        if self.training:
            self.largest = torch.maximum(self.largest, images.detach().square().mean())
        return self.linear(self.norm(images.flatten(1)))
"""
"""A model with a buffer that is not batch norm's: each rank sees different samples."""

KINDS = {
    "local": {"batch_norm": "local"},
    "sync": {"batch_norm": "sync"},
    "ghost": {"batch_norm": "ghost", "shards": 4},
    "bitwise": {"exact": "bitwise", "shards": 4},
}


def checked(tmp_path, kind, **settings):
    """Return settings of a run with a ragged last batch whose replicas are compared after every step."""
    path = tmp_path / "counting.py"
    path.write_text(COUNTING)
    usual = {"model": f"{path}:Net", "check_replicas": 1, "global_batch": 600, "steps": 5}
    return rank_settings(tmp_path, **(usual | KINDS[kind] | settings))


@pytest.mark.parametrize("kind", KINDS)
def test_healthy_replicas_pass_after_every_step(ranks, tmp_path, kind):
    for settings in ({}, {"model": "cnn"}, {"ema": 0.9} | ({"accumulate": 2} if kind in {"local", "sync"} else {})):
        results = ranks(3).run(train_rank, checked(tmp_path, kind, **settings))
        assert {result.step for result in results} == {5}


def train_with_a_flipped_bit(team, settings, name):
    """Train; one bit of a tensor of rank 1 flips after the second step."""
    honest = Training.train_step

    def train_step(self, step, parts):
        lr = honest(self, step, parts)
        if step == 1 and team.world.rank == 1:
            self.job.model.state_dict()[name].view(-1)[:1].view(torch.int32).bitwise_xor_(1)
        return lr

    with patch.object(Training, "train_step", train_step):
        return train_rank(team, settings)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *[(kind, "linear.weight") for kind in KINDS],
        *[(kind, "norm.running_var") for kind in KINDS if kind != "local"],
        *[(kind, "largest") for kind in ("ghost", "bitwise")],
    ],
)
def test_a_flipped_bit_is_caught_at_its_step_wherever_ranks_must_be_equal(ranks, tmp_path, kind, name):
    with pytest.raises(RanksError, match=rf"after step 2: {name} \(ranks 0,2 against rank 1\)\n"):
        ranks(3).run(train_with_a_flipped_bit, checked(tmp_path, kind), name)


def train_with_skewed_averages(team, settings):
    """Train; what rank 1 takes for the average of the buffers is not that of the others."""

    def skewed(model, team):
        average_buffers(model, team)
        if team.world.rank == 1:
            next(model.buffers()).add_(1)

    with patch("paceline.engine.job.average_buffers", skewed):
        return train_rank(team, settings)


def test_buffers_that_were_averaged_are_compared_too(ranks, tmp_path):
    with pytest.raises(RanksError, match=r"after step 2: .*\(ranks 0,2 against rank 1\)\n"):
        ranks(3).run(train_with_skewed_averages, checked(tmp_path, "local", save_every=Interval(2, "step")))
