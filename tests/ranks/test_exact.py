"""`--exact bitwise`: the same bits at every world size, through stops and resumes; and what would break it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.core.config import Config
from paceline.core.errors import ConfigError, ModelError, RanksError, RunError
from paceline.core.setting_types import Interval
from paceline.parallel.team import Team
from paceline.records.entries import RunResult
from tests.campaign.inside import FAULTS
from tests.ranks.runs import exact_settings, scores, train, train_rank, unequal
from tests.states import differences, final_state

MODELS = '''
import random
import numpy as np
import torch
from torch import nn

def plain(num_classes, image_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, num_classes))

def dropped(num_classes, image_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Dropout(0.3), nn.Linear(48, num_classes))

class Partly(nn.Module):
    """Uses one of two branches, by what it sees: parameters that some shards leave without a gradient."""

    def __init__(self, num_classes):
        super().__init__()
        self.inner = nn.ModuleList([nn.Linear(64, num_classes) for _ in range(2)])

    def forward(self, images):
        flat = images.flatten(1)
        return self.inner[int(flat.sum() > 0)](flat)

class Careless(nn.Module):
    """Uses an operation that torch does not promise to repeat."""

    def __init__(self, num_classes):
        super().__init__()
        self.linear = nn.Linear(64, num_classes)

    def forward(self, images):
        flat = images.flatten(1).contiguous()
        return self.linear(flat.put_(torch.tensor([0]), torch.tensor([1.0])))

class Shuffling(nn.Module):
    """Draws random numbers of its own, from torch, Python and numpy, in training and in evaluation."""

    def __init__(self, num_classes):
        super().__init__()
        self.linear = nn.Linear(64, num_classes)

    def forward(self, images):
        flat = images.flatten(1)
        return self.linear(flat + torch.randn_like(flat) * random.random() * np.random.rand())

def vectors(num_classes, image_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, num_classes))

class Halved(nn.Module):
    """Has parameters of three types, one of them frozen."""

    def __init__(self, num_classes):
        super().__init__()
        self.first, self.second = nn.Linear(64, 48).bfloat16(), nn.Linear(48, num_classes).double()
        self.frozen = nn.Linear(64, num_classes).requires_grad_(False)

    def forward(self, images):
        flat = images.flatten(1)
        return self.second(self.first(flat.bfloat16()).double()).float() + self.frozen(flat)

class Keeping(nn.Module):
    """Keeps a buffer that it assigns anew, a least value, a flag and a large count."""

    def __init__(self, num_classes):
        super().__init__()
        self.linear = nn.Linear(64, num_classes)
        self.register_buffer("center", torch.zeros(64))
        self.register_buffer("least", torch.tensor(torch.inf))
        self.register_buffer("fresh", torch.tensor(True))
        self.register_buffer("count", torch.tensor(2**30))

    def forward(self, images):
        flat = images.flatten(1)
        if self.training:
            self.center = 0.9 * self.center + 0.1 * flat.mean(0)
            self.least.copy_(torch.minimum(self.least, flat.min()))
            self.fresh.fill_(False)
            self.count += 1
        return self.linear(flat - self.center)
'''


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("models") / "models.py"
    path.write_text(MODELS)
    return path


CASES = {
    "no batch norm": {"model": "plain", "shards": 4},
    "dropout, adamw": {"model": "dropped", "shards": 6, "optimizer": "adamw", "lr": 0.002, "clip": 0.5},
    "batch norm and dropout": {"model": "cnn", "shards": 8, "ema": 0.9, "global_batch": 127},
    "batch norm, adamw, clipped": {"model": "cnn", "shards": 6, "optimizer": "adamw", "clip": 1.0, "lr": 0.002},
    "parameters without gradient": {"model": "Partly", "shards": 8, "global_batch": 24, "steps": 55},
    "random numbers of its own": {"model": "Shuffling", "shards": 4},
    "batch norm over vectors": {"model": "vectors", "shards": 4},
    "parameters of three types": {"model": "Halved", "shards": 4, "lr": 0.002},
    "buffers of every kind": {"model": "Keeping", "shards": 4},
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.bf16] if CASES[name]["model"] == "Halved" else []) for name in CASES]
)
def test_every_bit_is_the_same_at_every_world_size(ranks, tmp_path, models, name):
    settings = exact_settings(tmp_path, **CASES[name])
    no_fsdp = "ema" in settings or settings["model"] == "Halved"  # refused: see test_fsdp
    sharded = {} if no_fsdp else {"mode": "fsdp"}
    if settings["model"] not in {"cnn", "mlp"}:
        settings["model"] = f"{models}:{settings['model']}"
    alone = train(ranks, 1, settings)
    assert len(scores(alone)) > 3
    for world_size in (2, 3, 4):
        assert unequal(alone, train(ranks, world_size, settings)) == [], f"{world_size} ranks"
    assert unequal(alone, train(ranks, 3, settings | sharded)) == [], "fsdp"


def test_buffers_of_every_kind_hold_what_the_shards_saw(ranks, tmp_path, models):
    folder = train(ranks, 2, exact_settings(tmp_path, model=f"{models}:Keeping"))
    buffers = final_state(folder)["model"]
    assert (bool(buffers["fresh"]), int(buffers["count"])) == (False, 2**30 + 9)
    assert -1 < float(buffers["least"]) < 0
    assert 0 < float(buffers["center"].abs().max()) < 1


def in_many_buckets(team: Team, settings: dict[str, Any]) -> RunResult:
    return train_rank(team, settings | {"bucket_mb": 0.002})


def test_where_buckets_end_changes_no_bit(ranks, tmp_path):
    """Small buckets go over the ranks while the backward pass runs; the one of a whole model after it."""
    settings = exact_settings(tmp_path, model="cnn", shards=8, steps=14)
    alone = train(ranks, 1, settings)
    for world_size in (1, 2, 3, 4):
        assert unequal(alone, ranks(world_size).run(in_many_buckets, settings)[0].folder) == [], f"{world_size} ranks"


@pytest.mark.parametrize("precision", [pytest.param("bf16", marks=pytest.mark.bf16), "fp16"])
def test_every_bit_is_the_same_in_16_bit_arithmetic(ranks, tmp_path, precision):
    settings = exact_settings(tmp_path, model="cnn", precision=precision, steps=4, global_batch=96)
    assert unequal(train(ranks, 1, settings), train(ranks, 3, settings)) == []


def test_workers_that_prepare_batches_change_no_bit(ranks, tmp_path):
    settings = exact_settings(tmp_path, model="cnn", augment="crop1,flip")
    assert unequal(train(ranks, 1, settings | {"workers": 2}), train(ranks, 3, settings)) == []


@pytest.mark.parametrize(("first", "second"), [(3, 2), (1, 4), (4, 1)])
def test_a_run_stopped_at_one_world_size_resumes_at_another_to_the_same_bits(ranks, tmp_path, first, second):
    settings = exact_settings(tmp_path, model="cnn", optimizer="adamw", lr=0.002, ema=0.9)
    whole = train(ranks, 1, settings)
    stopped = train(ranks, first, settings, None, first - 1, 3)
    assert 3 <= final_state(stopped)["progress"]["step"] < 9, "the ranks stop together, a few steps later"
    resumed = train(ranks, second, settings, stopped)
    assert differences(final_state(whole), final_state(resumed)) == []


def test_bitwise_and_order_differ_by_rounding_only(ranks, tmp_path, models):
    """Ragged shards are weighted: the gradient is that of the whole batch, as with one part."""
    settings = exact_settings(tmp_path, model=f"{models}:plain", log_every=1)
    curves = [
        [record["loss"] for record in scores(train(ranks, size, settings | {"exact": kind})) if "lr" in record]
        for size, kind in ((1, "order"), (3, "bitwise"))
    ]
    assert curves[0] == pytest.approx(curves[1], rel=1e-5)
    assert curves[0] != curves[1]


def planted(module: str, name: str, fault: Any, team: Team, settings: dict[str, Any]) -> RunResult:
    """Train with something replaced."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{module}.{name}", fault)
        return train_rank(team, settings)


def with_fault(team: Team, settings: dict[str, Any], name: str) -> RunResult:
    with FAULTS[name](team):
        return train_rank(team, settings)


@pytest.mark.parametrize("fault", ["floating-point sums", "randomness consumed per rank", "unweighted ragged batch"])
def test_a_planted_fault_shows_at_three_ranks(ranks, tmp_path, fault):
    settings = exact_settings(tmp_path, model="cnn", shards=6)
    honest = train(ranks, 1, settings)
    assert unequal(honest, train(ranks, 3, settings)) == []
    alone, spread = (ranks(size).run(with_fault, settings, fault)[0].folder for size in (1, 3))
    first = honest if fault == "unweighted ragged batch" else alone  # those weights are wrong at every world size
    assert any(place.startswith("/model") for place in unequal(first, spread))


def test_two_threads_give_a_different_result_so_the_fingerprint_holds_them(ranks, tmp_path):
    settings = exact_settings(tmp_path, model="cnn")
    one, two = (train(ranks, 1, settings | {"threads": threads}) for threads in (1, 2))
    assert any(place.startswith("/model") for place in unequal(one, two))
    with pytest.raises(RunError, match="threads was 1 when saved and is 2 here") as refused:
        train(ranks, 2, settings | {"threads": 2, "steps": 12}, one)
    assert "--threads 1" in (refused.value.hint or "")
    train(ranks, 2, settings | {"threads": 2, "steps": 12, "exact": "order", "batch_norm": "ghost"}, one)


def one_has_two_threads(team: Team, settings: dict[str, Any]) -> RunResult:
    return train_rank(team, settings | {"threads": 1 + team.world.rank})


def test_ranks_with_different_threads_are_refused(ranks, tmp_path):
    with pytest.raises(ConfigError, match="threads is 1 on rank 0 and 2 on rank 1"):
        ranks(2).run(one_has_two_threads, exact_settings(tmp_path))


def flipped(team: Team, settings: dict[str, Any]) -> RunResult:
    from paceline.parallel.exact.bucket import Bucket

    honest = Bucket.give

    def give(self, targets, seen):
        honest(self, targets, seen)
        if team.world.rank == 1:
            targets[self.slots[0].name].grad.view(-1)[:1].view(torch.int32).bitwise_xor_(1 << 20)

    return planted("paceline.parallel.exact.bucket.Bucket", "give", give, team, settings)


def test_one_flipped_bit_on_one_rank_is_caught(ranks, tmp_path):
    with pytest.raises(RanksError, match="the model differs between ranks after step 1"):
        ranks(3).run(flipped, exact_settings(tmp_path, check_replicas=1))


def test_an_operation_that_is_not_deterministic_is_refused(ranks, tmp_path, models):
    with pytest.raises(ModelError, match="put_ is non-deterministic"):
        train(ranks, 1, exact_settings(tmp_path, model=f"{models}:Careless"))
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_norm": "sync"},
        {"mode": "dp"},
        {"compile": True},
        {"compress": "bf16"},
        {"accumulate": 2},
    ],
)
def test_settings_that_cannot_be_exact_are_refused_with_the_reason(settings):
    with pytest.raises(ConfigError, match="--exact bitwise") as refused:
        Config(exact="bitwise", **settings)
    assert refused.value.hint


def test_a_bitwise_run_resumes_through_every_mode(ranks, tmp_path):
    """single → ddp → fsdp → single on a convolutional network, each from the checkpoint of the one before."""
    settings = exact_settings(tmp_path, model="cnn", steps=12, global_batch=60, save_every=Interval(2, "step"))
    whole = train(ranks, 1, settings)
    folder = train(ranks, 1, settings | {"name": "chain"}, None, 0, 2)
    for world_size, mode, stop_at in ((3, "ddp", 2), (2, "fsdp", 2), (1, "single", 99)):
        before = final_state(folder)["progress"]["step"]
        folder = train(ranks, world_size, settings | {"name": "chain", "mode": mode}, folder, 0, stop_at)
        assert final_state(folder)["progress"]["step"] > before
    assert differences(final_state(whole), final_state(folder)) == []
