"""The global random generators, set by bits."""

import random

import numpy as np
import torch

from paceline.data.seeding import seed_generators


def drawn():
    return random.random(), np.random.random(), torch.rand(()).item()


def test_the_same_bits_give_the_same_numbers_from_every_generator():
    seen = []
    for bits in (2**63 + 5, 2**63 + 5, 2**63 + 6 << 1):
        seed_generators(bits % 2**64)
        seen.append(drawn())
    assert seen[0] == seen[1]
    assert all(one != other for one, other in zip(seen[0], seen[2], strict=True))


def test_random_and_numpy_are_left_alone_where_only_torch_is_seeded():
    seen = []
    for bits in (7, 1000):
        seed_generators(1)
        seed_generators(bits, torch_only=True)
        seen.append(drawn())
    assert seen[0][:2] == seen[1][:2]
    assert seen[0][2] != seen[1][2]
