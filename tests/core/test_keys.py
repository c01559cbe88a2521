"""Addressed randomness: the same bits everywhere, for ever, and evenly spread."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from paceline.core.keys import GOLDEN, MASK, mix, mix_each, uniform

parts = st.integers(min_value=-(2**63), max_value=2**63 - 1)


def test_the_bits_are_those_of_splitmix64():
    """The published generator, seeded with 0 and with 1234567, gives these first numbers."""
    assert mix(0) == 0xE220A8397B1DCDAF
    assert [mix(1234567 + k * GOLDEN & MASK) for k in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


@given(st.lists(parts, max_size=3), arrays(np.int64, 5, elements=parts))
def test_mixing_many_ids_at_once_gives_what_mixing_each_gives(before, ids):
    assert mix_each(mix(*before), ids).tolist() == [mix(*before, int(each)) for each in ids]


@given(st.lists(parts, min_size=1, max_size=4), st.integers(0, 3), st.integers(1, 2**63))
def test_every_part_counts(address, place, change):
    place %= len(address)
    other = [*address[:place], address[place] + change, *address[place + 1 :]]
    assert mix(*other) != mix(*address)


@given(parts, parts)
def test_the_order_of_parts_counts(first, second):
    assert (mix(first, second) == mix(second, first)) == (first == second)


def test_numbers_are_uniform_and_independent_of_their_neighbours():
    num = 100_000
    drawn = uniform(mix_each(mix(0, 1), np.arange(num)))
    assert drawn.min() >= 0
    assert drawn.max() < 1
    tenths = np.bincount((drawn * 10).astype(int), minlength=10)
    assert ((tenths - num / 10) ** 2 / (num / 10)).sum() < 27.9  # chi-squared, 9 degrees of freedom: one in a thousand
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 4 / num**0.5
    other = uniform(mix_each(mix(0, 2), np.arange(num)))
    assert abs(np.corrcoef(drawn, other)[0, 1]) < 4 / num**0.5


def test_the_largest_bits_stay_below_one():
    assert uniform(np.array([0, MASK], dtype=np.uint64)).tolist() == [0.0, 1 - 2.0**-53]
