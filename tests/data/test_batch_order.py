"""Order: the same global batches at every world size, entered at any step."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from paceline import Order
from paceline.core.errors import ConfigError
from paceline.data.order import epoch_order


def global_batches(world_size: int, *, step: int = 0, num_steps: int, workers: int = 0, **arguments) -> list[list[int]]:
    """Return the samples that all ranks together read in each step, in the order of the ranks."""
    data = TensorDataset(torch.arange(arguments["num_samples"]))
    of_ranks = []
    for rank in range(world_size):
        order = Order(rank=rank, world_size=world_size, step=step, **arguments)
        loader, batches = DataLoader(data, batch_sampler=order, num_workers=workers), []
        while len(batches) < num_steps:
            for (samples,) in loader:
                batches.append(samples.tolist())
                order.step += 1
                if len(batches) == num_steps:
                    break
        of_ranks.append(batches)
    return [[sample for part in parts for sample in part] for parts in zip(*of_ranks, strict=True)]


@given(
    st.integers(1, 60).flatmap(lambda samples: st.tuples(st.just(samples), st.integers(1, samples))),
    st.integers(1, 3),
    st.booleans(),
    st.integers(0, 20),
)
def test_global_batches_are_the_same_at_every_world_size(sizes, world_size, drop_last, step):
    arguments = {"num_samples": sizes[0], "global_batch": sizes[1], "seed": 3, "drop_last": drop_last}
    assume(world_size <= (sizes[1] if drop_last else sizes[0] % sizes[1] or sizes[1]))
    alone = global_batches(1, num_steps=step + 5, **arguments)
    assert global_batches(world_size, step=step, num_steps=5, **arguments) == alone[step:]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_workers_that_read_ahead_change_nothing(world_size):
    arguments = {"num_samples": 52, "global_batch": 8}
    alone = global_batches(1, num_steps=9, **arguments)
    assert global_batches(world_size, step=4, num_steps=5, workers=1, **arguments) == alone[4:9]


def test_the_order_is_the_one_of_paceline_train():
    batches = global_batches(2, num_steps=14, num_samples=50, global_batch=8, seed=5)
    for epoch in range(2):
        order = epoch_order(seed=5, epoch=epoch, num_samples=50)[:].tolist()
        assert batches[7 * epoch : 7 * epoch + 7] == [order[start : start + 8] for start in range(0, 50, 8)]


def test_a_distributed_sampler_repeats_samples_where_ranks_are_uneven():
    """The control: what most scripts use reads other samples at other world sizes."""
    data = TensorDataset(torch.arange(50))
    read = {
        size: sorted(sample for rank in range(size) for sample in DistributedSampler(data, size, rank))
        for size in (1, 3)
    }
    assert read[1] == list(range(50))
    assert len(read[3]) == 51
    batches = global_batches(3, num_steps=10, num_samples=50, global_batch=5)
    assert sorted(sample for batch in batches for sample in batch) == list(range(50))


def test_the_state_is_the_number_of_steps():
    order = Order(num_samples=11, global_batch=3)
    order.step = 7
    assert order.state_dict() == {"step": 7}
    assert order.epoch == 1
    other = Order(num_samples=11, global_batch=3, rank=1, world_size=2)
    other.load_state_dict(order.state_dict())
    assert (other.step, len(other), list(map(other.batch_size, range(4)))) == (7, 4, [3, 3, 3, 2])


def test_a_loop_that_forgets_to_count_is_told():
    order = Order(num_samples=10, global_batch=5)
    assert len(list(order)) == 2
    with pytest.raises(ConfigError, match="is still 0") as caught:
        iter(order)
    assert caught.value.hint == "add order.step += 1 after each batch"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_samples": 4, "global_batch": 5}, "global_batch=5 does not fit num_samples=4"),
        ({"num_samples": 4, "global_batch": 0}, "global_batch=0 does not fit"),
        ({"num_samples": 0, "global_batch": 1}, "does not fit num_samples=0"),
        ({"num_samples": 4, "global_batch": 2, "rank": 2, "world_size": 2}, "rank=2 is not one of 2 ranks"),
        ({"num_samples": 4, "global_batch": 2, "step": -1}, "step=-1 is negative"),
        ({"num_samples": 9, "global_batch": 4, "world_size": 2}, "the last batch of an epoch has 1 of 9 samples"),
    ],
)
def test_arguments_that_make_no_order_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Order(**arguments)
