"""The fixed order of additions: the same sum, to the last bit, however the shards are spread over ranks."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.config import Config
from paceline.core.plan import BatchPlan
from paceline.parallel.exact.exchange import fold


def gradients(num_shards, seed):
    """Return numbers of very different size, so that the order of additions shows."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(num_shards, 40, generator=generator)
    return values * 10.0 ** torch.randint(-6, 7, values.shape, generator=generator)


def added_up(values, owned, middle):
    """Go from rank to rank as an exchange does, from both ends to the middle."""
    totals = []
    for ranks, is_own in ((owned, lambda shard: shard < middle), (owned[::-1], lambda shard: shard >= middle)):
        total = None
        for shards in ranks:
            total = fold(total, [values[shard].clone() for shard in shards if shard < len(values) and is_own(shard)])
        totals += [] if total is None else [total]
    return sum(totals[1:], start=totals[0])


@given(st.integers(1, 40), st.data(), st.integers(0, 2**32))
def test_ranks_one_after_the_other_add_up_to_the_bits_of_one_rank(shards, data, seed):
    world_size, images = data.draw(st.integers(1, shards)), data.draw(st.integers(1, 2 * shards))
    values = gradients(min(shards, images), seed)
    sums = []
    for size in (1, world_size):
        config = Config(global_batch=100, exact="bitwise", shards=shards)
        plan = BatchPlan.make(config, images=1000, world_size=size)
        sums.append(added_up(values, [plan.part_numbers(rank) for rank in range(size)], plan.middle))
    assert torch.equal(*sums)


def test_adding_up_each_rank_first_gives_other_bits():
    """The control: when a rank adds up what it has before others', the sum depends on the ranks."""
    values = gradients(8, seed=1)
    alone = added_up(values, [[0, 1, 2, 3, 7, 6, 5, 4]], 4)
    by_rank = torch.stack([values[start:stop].sum(0) for start, stop in ((0, 2), (2, 5), (5, 8))])
    assert not torch.equal(by_rank.sum(0), alone)
    assert torch.allclose(by_rank.sum(0), alone, rtol=1e-3)
