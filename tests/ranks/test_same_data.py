"""The user's own data on many ranks: what it draws is the same everywhere, and what differs is refused."""

from pathlib import Path

import pytest

from paceline.core.errors import ConfigError, DataError
from tests.ranks.runs import exact_settings, train, unequal

DATA = """
import random
import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import TensorDataset

def rank():
    return dist.get_rank() if dist.is_initialized() else 0

def drawn():
    images = torch.randn(300, 1, 8, 8) + random.random() + np.random.rand()
    return TensorDataset(images, torch.randint(0, 10, (300,)))

def different_samples():
    labels = torch.arange(300) % 10
    return TensorDataset(torch.full((300, 1, 8, 8), float(rank())), labels)

def fewer_samples():
    count = 300 - rank()
    return TensorDataset(torch.zeros(count, 1, 8, 8), torch.arange(count) % 10)
"""


@pytest.fixture
def data(tmp_path) -> Path:
    path = tmp_path / "data.py"
    path.write_text(DATA)
    return path


@pytest.mark.parametrize("seed", [0, 1])
def test_random_data_is_the_same_on_every_rank_and_in_every_process(ranks, tmp_path, data, seed):
    settings = exact_settings(tmp_path, data=f"{data}:drawn", global_batch=50, seed=seed)
    alone = train(ranks, 1, settings)
    assert unequal(alone, train(ranks, 1, settings)) == []
    assert unequal(alone, train(ranks, 3, settings)) == []


@pytest.mark.parametrize("name", ["different_samples", "fewer_samples"])
@pytest.mark.parametrize("mode", ["order", "bitwise"])
def test_ranks_with_different_samples_are_refused(ranks, tmp_path, data, name, mode):
    settings = exact_settings(tmp_path, data=f"{data}:{name}", global_batch=50, exact=mode)
    train(ranks, 1, settings)
    with pytest.raises(DataError, match=r"rank 1 and rank 0 have different samples in .*data\.py:"):
        train(ranks, 2, settings)


def refusals(team):
    """Return what this rank says when rank 1 alone has a variable set."""
    with pytest.raises(ConfigError) as caught:
        team.agree({"torch": "2"} | ({"MKL_CBWR": "AVX2"} if team.world.rank == 1 else {}))
    return caught.value.message


def test_a_variable_set_on_one_rank_only_is_refused_by_all_ranks(ranks):
    assert ranks(2).run(refusals) == ["the ranks do not agree: MKL_CBWR is not set on rank 0 and AVX2 on rank 1"] * 2
