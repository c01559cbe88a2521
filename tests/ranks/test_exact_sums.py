"""Sums of `--exact bitwise` over ranks: any assignment of shards, stock collectives, no extra groups or bytes."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from paceline.core.config import Config
from paceline.models.zoo import build_model
from paceline.parallel.exact import reducer
from paceline.parallel.exact.bucket import Slot
from paceline.parallel.exact.reducer import Reducer
from paceline.parallel.module_state import ModuleState
from paceline.parallel.team import Team
from tests.ranks.runs import exact_settings, train_rank

SHARDS = 8


def make_reducer(model: nn.Module, team: Team) -> Reducer:
    slots = {name: Slot.of(name, parameter) for name, parameter in model.named_parameters()}
    config = Config(exact="bitwise", shards=SHARDS, bucket_mb=0.01)
    return Reducer(model, config, team, slots, ModuleState(model))


def sums_of_some_shards(team: Team, owners: list[list[int]]) -> list[torch.Tensor]:
    """Return the gradient of some steps, each with the rank that computes each of its shards."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 300), nn.BatchNorm1d(300), nn.Linear(300, 7))
    images = [torch.randn(5, 300) * 10.0 ** (shard % 3) for shard in range(SHARDS)]
    sums = make_reducer(model, team)
    found = []
    for owner_of in owners:
        own = [shard for shard, owner in enumerate(owner_of) if owner % team.world.size == team.world.rank]
        sums.is_exact = False
        while not sums.is_exact:
            with sums.step(len(own)):
                for shard in own:
                    with sums.micro_batch(1 / len(owner_of)):
                        model(images[shard]).square().sum().backward()
        found += [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        found += [buffer.clone() for buffer in model.buffers()]
        model.zero_grad()
    return found


OWNERS = [
    [0, 0, 1, 1, 2, 2, 3, 3],  # consecutive
    [3, 1, 0, 2, 0, 3, 1, 2],  # shuffled
    [0, 0, 0, 0, 0, 0, 1, 0],  # unequal
    [2, 2],  # fewer than ranks, as in a small last batch
    [1],
]


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_any_assignment_of_shards_to_ranks_gives_the_same_bits(ranks, world_size):
    (alone,) = ranks(1).run(sums_of_some_shards, OWNERS)
    assert len(alone) == len(OWNERS) * 9
    for rank, found in enumerate(ranks(world_size).run(sums_of_some_shards, OWNERS)):
        assert all(torch.equal(one, other) for one, other in zip(alone, found, strict=True)), f"rank {rank}"


def complex_gradients(team: Team) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the gradient of complex weights, clipped and not: by autograd, and as the sum over shards."""
    found = []
    for limit in (1e9, 0.1):
        torch.manual_seed(0)
        model, samples = nn.Linear(5, 3, dtype=torch.complex64), torch.randn(8, 5, dtype=torch.complex64)
        plain = torch.autograd.grad(model(samples).abs().square().sum(), model.weight)[0]
        bias = torch.autograd.grad(model(samples).abs().square().sum(), model.bias)[0]
        norm = (plain.abs().square().sum() + bias.abs().square().sum()).sqrt()
        sums = make_reducer(model, team)
        own = samples.chunk(SHARDS)[team.world.rank :: team.world.size]
        while not sums.is_exact:
            with sums.step(len(own)):
                for part in own:
                    with sums.micro_batch(1 / SHARDS):
                        model(part).abs().square().sum().backward()
        sums.clip(limit)
        assert model.weight.grad is not None
        found.append((plain * min(1.0, limit / float(norm)), model.weight.grad))
    return found


@pytest.mark.parametrize("world_size", [1, 2])
def test_complex_gradients_keep_their_imaginary_part(ranks, world_size):
    for found in ranks(world_size).run(complex_gradients):
        for plain, exact in found:
            assert exact.is_complex()
            torch.testing.assert_close(exact, plain, rtol=1e-5, atol=1e-6)


def counted(team: Team, settings: dict[str, Any]) -> dict[str, int]:
    """Train, and return the messages and bytes of gradients that this rank gave to collectives, and new groups."""
    counts = {"messages": 0, "bytes": 0, "groups": 0}
    honest, new_group = dist.all_reduce, dist.new_group

    def all_reduce(tensor, *args, **options):
        if tensor.numel() > 4:  # not the vote on a stop
            counts["messages"] += 1
            counts["bytes"] += tensor.nbytes
        return honest(tensor, *args, **options)

    def counting_new_group(*args, **options):
        counts["groups"] += 1
        return new_group(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reducer, "NUM_WIDE", 2)  # the other steps send the bytes of the gradients
        patch.setattr(dist, "all_reduce", all_reduce)
        patch.setattr(dist, "new_group", counting_new_group)
        train_rank(team, settings)
    return counts


def messages_of_ddp(team: Team, bucket_mb: float) -> int:
    """Return how many messages stock DDP sends in a step, after it has ordered its buckets."""
    sent: list[int] = []
    ddp = DistributedDataParallel(model_of_the_run(), bucket_cap_mb=bucket_mb)

    group = dist.group.WORLD
    assert group is not None

    def hook(_state, bucket):
        sent.append(bucket.index())
        return allreduce_hook(group, bucket)

    ddp.register_comm_hook(None, hook)
    for _ in range(3):
        sent.clear()
        ddp(torch.zeros(2, 1, 8, 8)).sum().backward()
    return len(sent)


def model_of_the_run() -> nn.Module:
    return build_model("cnn", num_classes=10, image_shape=(1, 8, 8))


@pytest.mark.parametrize("world_size", [2, 4])
def test_a_step_sends_the_bytes_of_its_gradients_in_one_message_more_than_ddp(ranks, tmp_path, world_size):
    """The magnitudes of all blocks are the other message. A repeated step sends all messages again."""
    bucket_mb = 0.02
    settings = exact_settings(tmp_path, model="cnn", global_batch=64, log_every=100, lr=0.001, bucket_mb=bucket_mb)
    (few, *_), (many, *_) = (ranks(world_size).run(counted, settings | {"steps": steps}) for steps in (6, 12))
    ddp = ranks(world_size).run(messages_of_ddp, bucket_mb)[0]
    assert ddp >= 2
    assert many["messages"] - few["messages"] == 6 * (ddp + 1)
    sent = (many["bytes"] - few["bytes"]) / 6
    gradients = sum(parameter.numel() * 4 for parameter in model_of_the_run().parameters())
    assert gradients < sent < 1.05 * gradients
    assert few["groups"] == many["groups"] == 0
