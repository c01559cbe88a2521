"""Batches and subsets."""

import numpy as np
import torch

from paceline.data.split import Batch, Subset
from tests.data.augmented import NUM, split


def test_images_held_out_of_a_subset_are_never_mixed_into_it():
    images = np.zeros((NUM, 1, 4, 4), np.uint8)
    images[30:] = 255
    batch = Subset(split("mixup1.0", images), np.arange(30)).fetch(np.arange(30), 0)
    assert batch.images.max() < 0
    assert split("mixup1.0", images).fetch(np.arange(30), 0).images.max() > 0


def test_a_subset_returns_samples_under_new_ids_with_their_old_randomness():
    whole = split("crop4,flip")
    subset = Subset(whole, np.array([7, 3, 11]))
    assert len(subset) == 3
    assert torch.equal(subset.fetch(np.array([2, 0]), 4).images, whole.fetch(np.array([11, 7]), 4).images)


def test_selecting_from_a_batch_copies_nothing():
    batch = split("mixup0.2").fetch(np.arange(8), 0)
    some = batch.select(slice(2, 5))
    assert torch.equal(some.images, batch.images[2:5])
    assert some.labels.tolist() == batch.labels.tolist()[2:5]
    assert some.targets is not None
    assert some.images.data_ptr() == batch.images[2:].data_ptr()


def test_an_aligned_batch_starts_at_a_full_cache_line_with_the_same_values():
    batch = Batch(torch.arange(40.0).reshape(10, 1, 2, 2), torch.arange(10), torch.arange(30.0).reshape(10, 3))
    shifted = batch.select(slice(1, 10))
    assert shifted.images.data_ptr() % 64
    aligned = shifted.aligned()
    assert aligned.targets is not None
    assert shifted.targets is not None
    assert aligned.images.data_ptr() % 64 == aligned.targets.data_ptr() % 64 == 0
    assert torch.equal(aligned.images, shifted.images)
    assert torch.equal(aligned.targets, shifted.targets)
