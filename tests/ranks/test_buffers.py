"""Ghost batch norm on real ranks: shards may lie on any rank."""

import copy

import pytest
import torch
from torch import nn

from paceline.parallel.buffers import GhostStep

SHARES = (8, 8, 8, 3)


class WithConstants(nn.Module):
    """Batch norms, and buffers that must stay as they are."""

    def __init__(self):
        super().__init__()
        self.norms = nn.Sequential(nn.BatchNorm1d(6), nn.BatchNorm1d(6, momentum=None))
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
        self.register_buffer("index", torch.tensor([0, 1, 2**62 + 1]))

    def forward(self, images):
        return self.norms(images)


def shards_of(rank, size):
    return range(rank * len(SHARES) // size, (rank + 1) * len(SHARES) // size)


def shards_of_step(step):
    return (torch.randn(sum(SHARES), 6, generator=torch.Generator().manual_seed(step)) * 2 + step).split(SHARES)


def train_shards(team):
    """Return the buffers after two steps, each on the shards of this rank."""
    model = WithConstants()
    for step in range(2):
        shards = shards_of_step(step)
        with GhostStep(model, team, scale=1.0) as ghosts:
            for number in shards_of(team.world.rank, team.world.size):
                with ghosts.micro_batch(SHARES[number] / sum(SHARES)):
                    model(shards[number])
    return dict(model.named_buffers())


def expected_buffers():
    """Return the weighted mean of what copies of the model see, one per shard."""
    model = WithConstants()
    for step in range(2):
        copies = [copy.deepcopy(model) for _ in SHARES]
        for replica, images in zip(copies, shards_of_step(step), strict=True):
            replica(images)
        for name, buffer in model.named_buffers():
            if buffer.is_floating_point():
                seen = torch.stack([replica.get_buffer(name) for replica in copies], -1)
                buffer.copy_(seen @ (torch.tensor(SHARES) / sum(SHARES)))
            else:
                buffer.copy_(copies[0].get_buffer(name))
    return dict(model.named_buffers())


@pytest.mark.parametrize("size", [1, 2, 3])
def test_buffers_do_not_depend_on_which_rank_runs_a_shard(ranks, size):
    results = ranks(size).run(train_shards)
    for result in results:
        torch.testing.assert_close(result, expected_buffers(), rtol=1e-5, atol=1e-6)
        assert all(torch.equal(result[name], results[0][name]) for name in result)
        assert result["norms.0.num_batches_tracked"] == 2
        assert result["index"].tolist() == [0, 1, 2**62 + 1]


def step_with_idle_ranks(team):
    model = WithConstants()
    with GhostStep(model, team, scale=1.0) as ghosts:
        if team.world.rank == 1:
            with ghosts.micro_batch(1.0):
                model(shards_of_step(0)[0])
    with GhostStep(nn.Linear(2, 2), team, scale=1.0):
        pass
    return dict(model.named_buffers())


def test_a_rank_without_shards_gets_the_changes_of_the_others(ranks):
    first, second = ranks(2).run(step_with_idle_ranks)
    assert first["norms.0.num_batches_tracked"] == 1
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert first["norms.0.running_mean"].abs().sum() > 0
