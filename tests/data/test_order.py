"""The order of samples, what is held out, and which samples a short run scores."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.order import epoch_order, evenly_spaced_ids, hashed_order, held_out


@given(st.integers(0, 2**64 - 1), st.integers(0, 500))
def test_a_hashed_order_contains_every_id_once(key, num_samples):
    assert sorted(hashed_order(key=key, num_samples=num_samples).tolist()) == list(range(num_samples))


def test_the_order_depends_on_seed_and_epoch():
    first, again, other_epoch, other_seed = (
        epoch_order(seed=seed, epoch=epoch, num_samples=50)[:].tolist()
        for seed, epoch in ((1, 2), (1, 2), (1, 3), (2, 2))
    )
    assert first == again
    assert first not in (other_epoch, other_seed)


def test_held_out_ids_are_the_rest_of_the_training_ids():
    train, held = held_out(num_samples=1000, fraction=0.1)
    assert len(held) == 100
    assert sorted([*train[:].tolist(), *held[:].tolist()]) == list(range(1000))


@given(st.integers(1, 10**12), st.integers(1, 3000))
def test_one_id_is_chosen_from_each_of_equal_intervals(num_samples, num_ids):
    num_ids = min(num_ids, num_samples)
    ids = evenly_spaced_ids(num_samples=num_samples, num_ids=num_ids)
    ends = [index * num_samples // num_ids for index in range(num_ids + 1)]
    assert all(start <= one < end for start, one, end in zip(ends[:-1], ids.tolist(), ends[1:], strict=True))


def test_all_ids_are_chosen_in_rising_order():
    assert evenly_spaced_ids(num_samples=1000, num_ids=1000).tolist() == list(range(1000))


@pytest.mark.parametrize("labels", [np.arange(50_000) % 10, np.arange(50_000) // 5_000], ids=["in turn", "sorted"])
def test_chosen_ids_have_every_class_about_as_often_as_all_ids(labels):
    counts = np.bincount(labels[evenly_spaced_ids(num_samples=50_000, num_ids=2_500)], minlength=10)
    assert counts.min() > 200, counts
