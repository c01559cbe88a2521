"""Splits in memory: what is computed once, and how many samples are prepared together."""

from dataclasses import replace

import numpy as np
import torch

from paceline.data.in_memory import GROUP_PIXELS, InMemory
from tests.data.augmented import IMAGES, LABELS, MEAN, STD, plain, split


def test_large_images_make_small_groups():
    large = split("flip", np.zeros((2, 3, 512, 512), np.uint8))
    assert 1 <= large.group_size <= GROUP_PIXELS // (3 * 512 * 512)
    assert replace(large, augmentation=None).group_size == 1


def test_a_small_set_is_normalised_once_to_the_same_values(monkeypatch):
    monkeypatch.setattr("paceline.data.in_memory.LARGEST_READY", 0)
    lazy = InMemory(torch.from_numpy(IMAGES), LABELS, mean=MEAN, std=STD)
    assert np.array_equal(lazy.fetch(np.arange(9), None).images.numpy(), plain(np.arange(9)))
