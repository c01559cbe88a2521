"""The keyed permutation: a bijection that cannot be told from chance; the same tests reject one with four rounds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.keys import mix
from paceline.data.order import hashed_order
from paceline.data.permutation import BLOCK, Permutation

NUM_KEYS = 1000
SMALL, LARGE = 101, 1_281_167
LIMIT = 5
"""Standard deviations that chance reaches once in two million tests."""


def z_of(counts: np.ndarray, expected: float) -> float:
    """Return how many standard deviations a chi-square is above its mean."""
    degrees = counts.size - 1
    chi_square = ((counts - expected) ** 2 / expected).sum()
    return float((chi_square - degrees) / np.sqrt(2 * degrees))


def differences(rounds: int | None) -> float:
    """Return the unevenness of the differences of consecutive ids, over many keys."""
    orders = (ids_of(key, SMALL, rounds) for key in range(NUM_KEYS))
    counts = sum(np.bincount(np.diff(ids) % SMALL, minlength=SMALL) for ids in orders)
    return z_of(np.asarray(counts)[1:], NUM_KEYS)


def places(rounds: int | None) -> float:
    """Return the unevenness of the positions of each id, over many keys."""
    counts = np.zeros((SMALL, SMALL))
    for key in range(NUM_KEYS):
        counts[np.arange(SMALL), ids_of(key, SMALL, rounds)] += 1
    return z_of(counts, NUM_KEYS / SMALL)


def pairs(rounds: int | None, distance: int) -> float:
    """Return the unevenness of ids at a distance, in 64 × 64 cells, of one large order."""
    cells = ids_of(7, LARGE, rounds) * 64 // LARGE
    counts = np.bincount(cells[:-distance] * 64 + cells[distance:], minlength=4096)
    return z_of(counts, (LARGE - distance) / 4096)


def ids_of(key: int, number: int, rounds: int | None) -> np.ndarray:
    if rounds is None:
        return hashed_order(key=mix(key), num_samples=number)
    return Permutation(key=key, num_ids=number, rounds=rounds)[:]


@given(st.integers(0, 2**64 - 1), st.integers(1, 3000))
def test_every_id_appears_once(key, num_ids):
    assert np.array_equal(np.sort(Permutation(key=key, num_ids=num_ids)[:]), np.arange(num_ids))


@pytest.mark.parametrize("num_ids", [65_537, 999_983, 1 << 20])
def test_every_id_appears_once_in_larger_orders(num_ids):
    assert np.array_equal(np.sort(Permutation(key=3, num_ids=num_ids)[:]), np.arange(num_ids))


def test_slices_and_single_positions_agree_with_the_whole():
    order = Permutation(key=5, num_ids=3 * BLOCK + 7, positions=range(11, 2 * BLOCK + 99))
    whole = Permutation(key=5, num_ids=3 * BLOCK + 7)[:]
    assert len(order) == 2 * BLOCK + 88
    assert np.array_equal(order[:], whole[11 : 2 * BLOCK + 99])
    assert np.array_equal(order[5:30], whole[16:41])
    assert np.array_equal(order[np.array([0, 100, 5])], whole[[11, 111, 16]])
    assert np.array_equal(order.has(np.arange(3 * BLOCK + 7)), np.isin(np.arange(3 * BLOCK + 7), order[:]))
    with pytest.raises(IndexError, match="between 0 and"):
        order[np.array([len(order)])]


def test_the_order_is_a_fixed_function_of_its_key():
    """A change of these numbers would change the order of runs that are resumed."""
    assert Permutation(key=1, num_ids=10**9)[:4].tolist() == FIRST
    assert Permutation(key=2, num_ids=10**9)[:4].tolist() != FIRST


FIRST = [294405932, 918046913, 849110830, 530427731]


@pytest.mark.parametrize("rounds", [None, 8], ids=["argsort", "8 rounds"])
def test_the_order_cannot_be_told_from_chance(rounds):
    assert abs(places(rounds)) < LIMIT
    assert abs(differences(rounds)) < LIMIT
    assert all(abs(pairs(rounds, distance)) < LIMIT for distance in (1, 256))


def test_four_rounds_are_told_from_chance():
    """The control of the test above."""
    assert differences(4) > 4 * LIMIT
