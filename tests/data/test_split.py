"""Subsets, and what a data set knows about itself."""

import numpy as np
import torch

from paceline.data.split import DataSet, Subset
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


def test_the_facts_of_a_data_set_are_those_it_has_and_those_it_names():
    whole = split("none")
    images = DataSet(train=whole, test=whole, classes=("a", "b"), image_shape=(3, 8, 9))
    assert images.facts == {
        "classes": ("a", "b"), "num_classes": 2, "image_shape": (3, 8, 9), "in_channels": 3, "image_size": 8,
    }  # fmt: skip
    assert DataSet(train=whole, test=whole, task="language", named_facts={"vocab_size": 256}).facts == {
        "vocab_size": 256
    }
