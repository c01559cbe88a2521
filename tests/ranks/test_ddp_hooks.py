"""Compressed gradients on real ranks: close to the plain ones, the same everywhere, and fewer bytes."""

from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from paceline.parallel.ddp_hooks import comm_hook
from paceline.parallel.replicas import check_replicas


def gradients(team, kind, num_steps):
    """Return the gradients of some steps on the same samples, and the bytes that the last gives to the network."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(96, 128), nn.Tanh(), nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 10))
    # Gradient buckets of 16 kB: several of them, as in a real model.
    ddp_model = DistributedDataParallel(model, bucket_cap_mb=1 / 64)
    if kind is not None:
        ddp_model.register_comm_hook(*comm_hook(kind, team.world.size))
    torch.manual_seed(team.world.rank)
    images = torch.randn(32, 96)
    history, num_bytes = [], 0
    for _ in range(num_steps):
        ddp_model.zero_grad()
        with recorded_bytes() as sent:
            ddp_model(images).square().mean().backward()
        num_bytes = sum(sent)
        named = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
        assert check_replicas(named.items(), team) == []
        history.append(torch.cat([grad.flatten() for grad in named.values()]))
    return torch.stack(history), num_bytes


@contextmanager
def recorded_bytes():
    """Note the sizes of what is given to all_reduce."""
    original, sent = dist.all_reduce, []

    def all_reduce(tensor, *args, **kwargs):
        sent.append(tensor.nbytes)
        return original(tensor, *args, **kwargs)

    dist.all_reduce = all_reduce
    try:
        yield sent
    finally:
        dist.all_reduce = original


def relative(got, expected):
    return ((got - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize(("kind", "size"), [("fp16", 2), ("fp16", 3), ("bf16", 2), ("bf16", 3)])
def test_sixteen_bits_are_close_equal_on_all_ranks_and_half_the_bytes(ranks, kind, size):
    plain, _ = ranks(size).run(gradients, None, 3)[0]
    got, num_bytes = ranks(size).run(gradients, kind, 3)[0]
    assert 0 < relative(got, plain) < {"fp16": 2**-10, "bf16": 2**-7}[kind]
    assert num_bytes == plain[0].nbytes / 2


def huge_gradient(team):
    """Return a gradient that fits fp16 as a mean over ranks, but not on each."""
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    model.register_comm_hook(*comm_hook("fp16", team.world.size))
    model(torch.tensor([[98_304.0 if team.is_lead else 0.0]])).sum().backward()
    return [parameter.grad.item() for parameter in model.parameters() if parameter.grad is not None]


def test_fp16_divides_before_it_narrows(ranks):
    assert ranks(2).run(huge_gradient) == [[49_152], [49_152]]


def narrow_gradients(team):
    """Return the types of gradients that are already narrow."""
    model = DistributedDataParallel(nn.Linear(4, 2).to(torch.bfloat16))
    model.register_comm_hook(*comm_hook("fp16", team.world.size))
    model(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
    return [parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.bf16
def test_gradients_of_16_bits_are_not_compressed(ranks):
    assert ranks(2).run(narrow_gradients)[0] == [torch.bfloat16] * 2
