"""The fixed order of additions: the same sum, to the last bit, however the shards are spread over ranks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.batch_plan import BatchPlan, order_of_addition
from paceline.core.config import Config
from paceline.parallel.exact.exchange import fold, middle_ranks


def gradients(num_shards, seed):
    """Return numbers of very different size, so that the order of additions shows."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(num_shards, 40, generator=generator)
    return values * 10.0 ** torch.randint(-6, 7, values.shape, generator=generator)


def added_in_order(values, shards):
    """Add the values one after the other, as `order_of_addition` says."""
    totals = []
    for order in order_of_addition(shards, len(values)):
        total = None
        for shard in order:
            total = values[shard].clone() if total is None else total + values[shard]
        totals += [] if total is None else [total]
    return sum(totals[1:], start=totals[0])


def added_by_ranks(values, owned):
    """Go from rank to rank as an exchange does, from both ends to the middle."""
    totals = []
    for ranks, order in zip((owned, owned[::-1]), order_of_addition(sum(map(len, owned)), len(values)), strict=True):
        total = None
        for shards in ranks:
            total = fold(total, [values[shard].clone() for shard in shards if shard in order])
        totals += [] if total is None else [total]
    return sum(totals[1:], start=totals[0])


@given(st.integers(1, 40), st.data(), st.integers(0, 2**32))
def test_ranks_add_in_the_order_of_addition_at_every_world_size(shards, data, seed):
    world_size, samples = data.draw(st.integers(1, shards)), data.draw(st.integers(1, 2 * shards))
    values = gradients(min(shards, samples), seed)
    for size in (1, world_size):
        config = Config(global_batch=100, exact="bitwise", shards=shards)
        plan = BatchPlan.make(config, num_samples=1000, world_size=size)
        owned = [plan.micro_batch_indices(rank) for rank in range(size)]
        assert torch.equal(added_by_ranks(values, owned), added_in_order(values, shards))


@given(st.integers(1, 64), st.data())
def test_every_shard_is_added_once_and_from_the_ends_to_the_middle(shards, data):
    num_shards = data.draw(st.integers(1, shards))
    first, second = order_of_addition(shards, num_shards)
    assert sorted([*first, *second]) == list(range(num_shards))
    assert list(first) == sorted(first)
    assert list(second) == sorted(second, reverse=True)
    assert not first or not second or first[-1] < second[-1]


def test_summing_within_each_rank_first_gives_a_different_result():
    """The control: when a rank adds up what it has before others', the sum depends on the ranks."""
    values = gradients(8, seed=1)
    alone = added_in_order(values, 8)
    by_rank = torch.stack([values[start:stop].sum(0) for start, stop in ((0, 2), (2, 5), (5, 8))])
    assert not torch.equal(by_rank.sum(0), alone)
    assert torch.allclose(by_rank.sum(0), alone, rtol=1e-3)


@pytest.mark.parametrize(("num_ranks", "roots"), [(1, [0]), (2, [0, 1]), (3, [1]), (4, [1, 2]), (5, [2])])
def test_one_or_two_ranks_are_in_the_middle(num_ranks, roots):
    assert middle_ranks(num_ranks) == roots
