"""A rank that computes wrong gradients is found by another rank, and a replica that differs is repaired."""

from unittest.mock import patch

import pytest
import torch

from paceline.core.errors import ConfigError, RanksError
from paceline.engine.compute_check import Doubt, describe_doubts, find_doubts
from paceline.engine.loop import Training
from paceline.engine.optimizer import MovingAverage
from tests.ranks.runs import exact_settings, rank_settings, train, train_rank, unequal

HOSTS = ["a", "b", "c", "d"]


def train_with_a_bad_processor(team, settings, factor):
    """Train; from step 3 on, rank 1 gets wrong products in its first layer."""
    honest = torch.nn.Linear.forward
    calls = 0

    def forward(self, inputs):
        nonlocal calls
        calls += 1
        found = honest(self, inputs)
        return found * factor if team.world.rank == 1 and calls > 8 else found

    with patch.object(torch.nn.Linear, "forward", forward):
        return train_rank(team, settings)


@pytest.mark.parametrize(("exact", "factor"), [("bitwise", 1 + 2**-23), ("order", 1.01)])
def test_a_rank_that_computes_wrong_gradients_is_named(ranks, tmp_path, exact, factor):
    make = exact_settings if exact == "bitwise" else rank_settings
    settings = make(tmp_path, check_compute=2)
    with pytest.raises(RanksError, match=r"rank 1 on .* computes wrong gradients: ranks 0,2 got others from"):
        ranks(3).run(train_with_a_bad_processor, settings, factor)


def test_with_two_ranks_one_of_them_is_wrong(ranks, tmp_path):
    settings = exact_settings(tmp_path, check_compute=2)
    with pytest.raises(RanksError, match=r"rank 0 on .* and rank 1 on .* so at least one of them is wrong"):
        ranks(2).run(train_with_a_bad_processor, settings, 1.5)


@pytest.mark.parametrize("exact", ["bitwise", "order"])
def test_healthy_ranks_pass_and_the_check_leaves_no_trace(ranks, tmp_path, exact):
    make = exact_settings if exact == "bitwise" else rank_settings
    plain = train(ranks, 3, make(tmp_path / "plain", model="cnn", steps=7))
    checked = train(ranks, 3, make(tmp_path / "checked", model="cnn", steps=7, check_compute=1))
    assert unequal(plain, checked) == []


MODELS = """
import torch
from torch import nn

class Normed(nn.Sequential):
    def __init__(self, num_classes):
        # the true gradient of the bias of the first layer is 0: batch norm subtracts it again
        super().__init__(
            nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, num_classes)
        )

class Moving(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.quick, self.slow = nn.Linear(64, num_classes), nn.Linear(64, num_classes).requires_grad_(False)

    def forward(self, images):
        if self.training:
            with torch.no_grad():
                self.slow.bias.lerp_(images.mean(), 0.1)
        return self.quick(images.flatten(1)) + 0.5 * self.slow(images.flatten(1))
"""


def own_model(tmp_path, name):
    path = tmp_path / "models.py"
    path.write_text(MODELS)
    return f"{path}:{name}"


def test_frozen_parameters_that_the_forward_pass_changes_are_restored_after_the_check(ranks, tmp_path):
    model = own_model(tmp_path, "Moving")
    plain = train(ranks, 3, exact_settings(tmp_path / "plain", model=model, steps=4))
    checked = train(ranks, 3, exact_settings(tmp_path / "checked", model=model, steps=4, check_compute=1))
    assert unequal(plain, checked) == []


def train_with_other_threads(team, settings):
    """Train; rank 1 adds numbers in another order, as it has more threads."""
    return train_rank(team, settings | {"threads": 1 + team.world.rank})


def test_ranks_with_other_numbers_of_threads_pass(ranks, tmp_path):
    settings = rank_settings(tmp_path, model=own_model(tmp_path, "Normed"), steps=4, check_compute=1)
    assert {result.step for result in ranks(2).run(train_with_other_threads, settings)} == {4}


def test_one_rank_cannot_be_checked(ranks, tmp_path):
    with pytest.raises(ConfigError, match="--check-compute 5 needs at least two ranks"):
        ranks(1).run(train_rank, rank_settings(tmp_path, check_compute=5))


def test_the_rank_in_most_pairs_that_differ_is_the_wrong_one():
    good, bad = {"w": (1.0,)}, {"w": (2.0,)}
    told = [(good, bad), (bad, bad), (good, good), (good, good)]
    # rank 1 computed its own and that of rank 2; rank 0 computed that of rank 1
    told[0], told[1] = (good, good), (bad, bad)
    doubts = find_doubts(told, 1, tolerance=0)
    assert doubts == [Doubt(1, 0, ["w"]), Doubt(2, 1, ["w"])]
    assert describe_doubts(doubts, 7, HOSTS).startswith("rank 1 on b computes wrong gradients: ranks 0,2 got others")


def test_ranks_without_samples_are_not_compared():
    assert find_doubts([({"w": (1.0,)}, None), (None, {"w": (1.0,)})], 1, tolerance=0) == []


def test_rounding_noise_of_a_zero_gradient_is_no_difference():
    own, theirs = {"w": (1.0,), "b": (1.4e-9,)}, {"w": (1.0,), "b": (9.4e-10,)}
    assert find_doubts([(own, theirs), (own, theirs)], 1, tolerance=1e-3) == []
    large = {"w": (1.0,), "b": (2e-4,)}
    assert find_doubts([(own, large), (own, large)], 1, tolerance=1e-3) == [Doubt(1, 0, ["b"]), Doubt(0, 1, ["b"])]


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("own", "theirs", "differ"),
    [((INF, NAN), (INF, NAN), False), ((NAN, NAN), (INF, INF), False), ((INF, INF), (1.0, 1.0), True)],
)
def test_a_run_that_diverges_on_both_ranks_accuses_none(own, theirs, differ):
    found = find_doubts([({"w": own}, None), (None, {"w": theirs})], 1, tolerance=1e-3)
    assert bool(found) == differ


def train_with_a_flipped_bit(team, settings, part):
    """Train; one bit of the weights or of the optimizer state of rank 1 flips after the second step."""
    honest = Training.train_step

    def train_step(self, step, parts):
        lr = honest(self, step, parts)
        if step == 1 and team.world.rank == 1:
            weight = next(self.job.model.parameters())
            struck = weight.data if part == "weights" else self.job.optimizer.state[weight]["momentum_buffer"]
            struck.view(-1)[:1].view(torch.int32).bitwise_xor_(1 << 20)
        return lr

    with patch.object(Training, "train_step", train_step):
        return train_rank(team, settings)


@pytest.mark.parametrize("part", ["weights", "optimizer"])
def test_a_flipped_bit_is_repaired_from_the_majority(ranks, tmp_path, part):
    plain = train(ranks, 3, exact_settings(tmp_path / "plain"))
    settings = exact_settings(tmp_path / "repaired", check_replicas=1, repair_replicas=True)
    results = ranks(3).run(train_with_a_flipped_bit, settings, part)
    assert unequal(plain, results[0].folder) == []
    log = (results[0].folder / "log.txt").read_text()
    assert "after step 2" in log
    assert "(ranks 0,2 against rank 1); repaired from the majority" in log


def train_with_a_flip_before_the_average(team, settings):
    """Train; a bit of a weight of rank 0 flips in the update of the second step, and the average takes it in."""
    honest = MovingAverage.update

    def update(self, step):
        if step == 1 and team.world.rank == 0:
            next(self._source.parameters()).data.view(-1)[:1].view(torch.int32).bitwise_xor_(1 << 20)
        honest(self, step)

    with patch.object(MovingAverage, "update", update):
        return train_rank(team, settings)


def test_an_average_of_a_flipped_bit_is_repaired_too(ranks, tmp_path):
    averaged = {"ema": 0.9, "steps": 4}
    plain = train(ranks, 3, exact_settings(tmp_path / "plain", **averaged))
    settings = exact_settings(tmp_path / "repaired", check_replicas=1, repair_replicas=True, **averaged)
    results = ranks(3).run(train_with_a_flip_before_the_average, settings)
    assert unequal(plain, results[0].folder) == []
    log = (results[0].folder / "log.txt").read_text()
    assert "ema: " in log
    assert "(ranks 1,2 against rank 0)" in log


def test_a_flipped_bit_in_optimizer_state_is_noticed(ranks, tmp_path):
    with pytest.raises(RanksError, match=r"after step 2: optimizer: momentum_buffer of .*\(ranks 0,2 against rank 1\)"):
        ranks(3).run(train_with_a_flipped_bit, exact_settings(tmp_path, check_replicas=1), "optimizer")


def test_two_ranks_have_no_majority(ranks, tmp_path):
    settings = exact_settings(tmp_path, check_replicas=1, repair_replicas=True)
    with pytest.raises(RanksError, match="they cannot be repaired, as no majority of ranks agrees"):
        ranks(2).run(train_with_a_flipped_bit, settings, "weights")
