"""Parameter groups of the optimizer."""

import torch
from torch import nn

from paceline.core.config import Config
from paceline.engine.optimizer import MovingAverage, build_optimizer, copy_frozen, parameter_groups


def test_norms_and_biases_can_be_left_out_of_weight_decay():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.GroupNorm(1, 2))
    decayed, kept = parameter_groups(model, Config(no_decay_norm=True, weight_decay=0.1))
    assert [parameter.ndim for parameter in decayed["params"]] == [4]
    assert len(kept["params"]) == 5
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.1, 0.0)
    assert len(parameter_groups(model, Config())) == 1


def test_the_average_follows_the_weights_and_copies_counters():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    ema = MovingAverage(copy_frozen(model), model, decay=0.5)
    theirs, mine = model.state_dict(), ema.model.state_dict()
    start = mine["0.weight"].clone()
    theirs["0.weight"] += 1
    theirs["1.num_batches_tracked"] += 3
    ema.update(step=100)
    torch.testing.assert_close(mine["0.weight"], start + 0.5)
    assert int(mine["1.num_batches_tracked"]) == 3


def test_parameters_without_a_fused_kernel_leave_the_choice_to_torch():
    """fused=False would also rule out the foreach kernels."""
    optimizer = build_optimizer(Config(), nn.Linear(2, 2).bfloat16())
    assert [optimizer.defaults[name] for name in ("fused", "foreach")] == [None, None]
    assert build_optimizer(Config(), nn.Linear(2, 2)).defaults["fused"] is True
