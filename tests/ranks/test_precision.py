"""Half precision in every mode: the same curve up to rounding; a gradient that overflows on one shard stops all."""

from typing import Any

import pytest
import torch

import paceline
from paceline.core.config import Config
from paceline.core.start import Start
from tests.ranks.runs import losses, rank_settings, train_rank
from tests.states import final_state

ROUNDED = 2e-2
"""Relative difference that 11 bits of mantissa may make in a loss after a dozen steps."""

SPIKES = '''
import torch

class Spike(torch.autograd.Function):
    """Lets the gradient of the first number overflow."""

    @staticmethod
    def forward(context, values):
        return values.clone()

    @staticmethod
    def backward(context, grad):
        grad = grad.clone()
        grad[0] = float("inf")
        return grad

class Net(torch.nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.linear = torch.nn.Linear(64, num_classes)
        self.offset = torch.nn.Parameter(torch.zeros(num_classes))
        self.steps = 0

    def forward(self, images):
        self.steps += self.training
        offset = Spike.apply(self.offset) if self.training and self.steps == 4 else self.offset
        return self.linear(images.flatten(1)) + offset
'''


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_ranks_in_fp16_follow_the_curve_of_one_in_fp32(ranks, tmp_path, mode):
    settings = rank_settings(tmp_path, steps=12, log_every=1)
    alone = losses(ranks(1).run(train_rank, settings)[0].folder)
    spread = losses(ranks(2).run(train_rank, settings | {"precision": "fp16", "mode": mode})[0].folder)
    assert spread == pytest.approx(alone, rel=ROUNDED)
    assert spread != pytest.approx(alone, rel=1e-7), "fp16 shows"


def test_threads_in_fp16_follow_the_curve_of_one_in_fp32(tmp_path, one_thread):
    settings = rank_settings(tmp_path, steps=12, log_every=1, threads=1)
    alone = losses(paceline.train(Config(**settings)).folder)
    half: dict[str, Any] = {"precision": "fp16", "mode": "dp"}
    spread = losses(paceline.train(Config(**(settings | half)), start=Start(nproc=2)).folder)
    assert spread == pytest.approx(alone, rel=ROUNDED)
    assert spread != pytest.approx(alone, rel=1e-7), "fp16 shows"


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_a_gradient_that_overflows_on_one_shard_is_skipped_by_every_rank(ranks, tmp_path, mode):
    (tmp_path / "spikes.py").write_text(SPIKES)
    settings = rank_settings(
        tmp_path, model=f"{tmp_path}/spikes.py:Net", steps=6, precision="fp16", mode=mode, log_every=1
    )
    folder = ranks(2).run(train_rank, settings)[0].folder
    state = final_state(folder)
    assert all(torch.isfinite(tensor).all() for tensor in state["model"].values())
    assert state["scaler"]["scale"] == 2**15, "halved once"
