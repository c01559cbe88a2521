"""Flips."""

import numpy as np

from tests.data.augmented import NUM, batched_bytes


def test_alternating_flip_shows_both_sides_in_any_two_epochs():
    ids = np.arange(NUM)
    for epoch in range(4):
        now, after = (batched_bytes("altflip", ids, turn) for turn in (epoch, epoch + 1))
        assert np.array_equal(now, after[..., ::-1])
