"""Synchronised batch norm on real ranks: one process with the whole batch computes the same."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from paceline.parallel.batchnorm import muted, synchronise_batch_norm
from paceline.parallel.buffers import average_buffers
from paceline.parallel.replicas import check_replicas


def small_model(**settings):
    """Return a model without parameters that a later batch norm makes irrelevant: their gradients would be noise."""
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6, **settings),
        nn.ReLU(),
        nn.Conv2d(6, 4, 3, stride=2, bias=False),
        nn.BatchNorm2d(4, **settings),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 2 * 2, 8, bias=False),
        nn.BatchNorm1d(8, **settings),
        nn.Linear(8, 5),
    )


def whole_batch(num_samples):
    generator = torch.Generator().manual_seed(4)
    images = torch.randn(num_samples, 3, 6, 6, generator=generator) * 2 + 1
    return images, torch.randint(5, (num_samples,), generator=generator)


def train_on_share(team, shares, settings):
    """Return output, input gradient, parameter gradients and buffers after two steps on this rank's share."""
    rank, size = team.world.rank, team.world.size
    model = synchronise_batch_norm(small_model(**settings), team)
    parallel = DistributedDataParallel(model, broadcast_buffers=False)
    images, labels = (part.split(shares)[rank] for part in whole_batch(sum(shares)))
    idle = len(images) == 0
    if idle:
        images, labels = torch.randn(2, 3, 6, 6), torch.tensor([0, 1])
    images.requires_grad_()
    output = None
    for _ in range(2):
        parallel.zero_grad()
        images.grad = None
        with muted(model) if idle else torch.enable_grad():
            output = parallel(images)
        loss = functional.cross_entropy(output, labels)
        (loss * (size * shares[rank] / sum(shares))).backward()
    assert output is not None
    buffers = dict(model.named_buffers())
    assert check_replicas(buffers.items(), team) == []
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {"output": output.detach(), "input": images.grad, "grads": grads, "buffers": buffers}


def train_alone(num_samples, settings):
    model, (images, labels) = small_model(**settings), whole_batch(num_samples)
    images.requires_grad_()
    output = None
    for _ in range(2):
        model.zero_grad()
        images.grad = None
        output = model(images)
        functional.cross_entropy(output, labels).backward()
    assert output is not None
    grads = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {"output": output.detach(), "input": images.grad, "grads": grads, "buffers": dict(model.named_buffers())}


def assert_close(got, expected):
    """Compare to 1e-5 of the largest value: single values may be sums that cancel."""
    assert got.dtype == expected.dtype
    scale = max(expected.abs().max().item(), 1e-3)
    torch.testing.assert_close(got / scale, expected / scale, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("shares", "settings"),
    [
        ((5, 11), {}),
        ((4, 7, 2), {}),
        ((4, 7, 2), {"momentum": None}),
        ((1, 9), {"affine": False}),
        ((6, 0, 5), {}),
        ((6, 5), {"track_running_stats": False}),
    ],
)
def test_ranks_with_unequal_batches_compute_the_result_of_one_process(ranks, shares, settings):
    alone = train_alone(sum(shares), settings)
    together = ranks(len(shares)).run(train_on_share, shares, settings)
    outputs = torch.cat([result["output"] for result, share in zip(together, shares, strict=True) if share])
    inputs = torch.cat([result["input"] for result, share in zip(together, shares, strict=True) if share])
    assert_close(outputs, alone["output"])
    assert_close(inputs / len(shares), alone["input"])
    for result in together:
        assert result["grads"].keys() == alone["grads"].keys()
        for name, expected in alone["grads"].items():
            assert_close(result["grads"][name], expected)
        assert result["buffers"].keys() == alone["buffers"].keys()
        for name, expected in alone["buffers"].items():
            assert_close(result["buffers"][name], expected)


def forward_empty(team):
    layer = synchronise_batch_norm(nn.BatchNorm2d(3), team)
    images = torch.arange(96.0).view(4, 3, 2, 4)[: 4 * (1 - team.world.rank)].clone().requires_grad_()
    output = layer(images)
    output.square().sum().backward()
    assert images.grad is not None
    return tuple(output.shape), tuple(images.grad.shape), layer.running_mean


def test_a_rank_may_have_no_image_at_all(ranks):
    first, second = ranks(2).run(forward_empty)
    assert second[:2] == ((0, 3, 2, 4), (0, 3, 2, 4))
    assert torch.equal(first[2], second[2])


def evaluate_alone(team):
    """Evaluate on rank 0 only: a collective would hang."""
    layer = synchronise_batch_norm(nn.BatchNorm1d(3), team).eval()
    return torch.equal(layer(torch.ones(2, 3)), nn.BatchNorm1d(3).eval()(torch.ones(2, 3))) if team.is_lead else None


def test_evaluation_communicates_nothing(ranks):
    assert ranks(2).run(evaluate_alone) == [True, None]


class Buffers(nn.Module):
    """A model with buffers of every kind; `constant` is the same on every rank."""

    def __init__(self, rank):
        super().__init__()
        generator = torch.Generator().manual_seed(rank)
        self.norm = nn.BatchNorm1d(1000)
        self.norm.running_mean = torch.randn(1000, generator=generator)
        self.norm.num_batches_tracked = torch.tensor(7 + rank)
        self.register_buffer("constant", torch.linspace(-1, 1, 997) / 3)
        self.register_buffer("short", torch.full((3,), float(rank), dtype=torch.bfloat16))
        self.register_buffer("mask", torch.tensor([rank == 0, True]))
        self.register_buffer("none", None)


def averaged(team):
    model = Buffers(team.world.rank)
    before = copy.deepcopy(dict(model.named_buffers()))
    average_buffers(model, team)
    after = dict(model.named_buffers())
    assert check_replicas(after.items(), team) == []
    assert torch.equal(after["constant"], before["constant"])
    return before, after


@pytest.mark.parametrize("size", [2, 3])
def test_averaged_buffers_are_the_mean_and_the_same_bits_everywhere(ranks, size):
    results = ranks(size).run(averaged)
    mean = torch.stack([before["norm.running_mean"] for before, _ in results]).mean(0)
    for _, after in results:
        torch.testing.assert_close(after["norm.running_mean"], mean)
        assert after["norm.num_batches_tracked"] == 7
        assert after["mask"].tolist() == [True, True]
        assert after["short"].tolist() == [(size - 1) / 2] * 3
