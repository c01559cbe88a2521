"""The hash of a tensor: shards add up to it, and every bit and place counts."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.records import tensor_hash
from paceline.records.tensor_hash import hash_text, no_sums, sum_words


def whole(data: np.ndarray, element_bytes: int) -> str:
    return hash_text(sum_words(data, element_bytes=element_bytes, first=0))


@given(st.data(), st.sampled_from([1, 2, 4, 8, 16]))
def test_the_hashes_of_shards_add_up_to_that_of_the_tensor_wherever_it_is_cut(draw, element_bytes):
    num = draw.draw(st.integers(0, 40_000 // element_bytes))
    data = np.random.default_rng(num).integers(0, 256, num * element_bytes, dtype=np.uint8)
    cuts = [0, *sorted(draw.draw(st.lists(st.integers(0, num), max_size=4))), num]
    total = no_sums()
    for start, stop in itertools.pairwise(cuts):
        total += sum_words(data[start * element_bytes : stop * element_bytes], element_bytes=element_bytes, first=start)
    assert hash_text(total) == whole(data, element_bytes)


@pytest.mark.parametrize("element_bytes", [1, 2, 4, 8])
def test_every_flipped_bit_and_every_exchange_changes_the_hash(element_bytes):
    data = np.random.default_rng(0).integers(0, 256, 64, dtype=np.uint8)
    found = {whole(data, element_bytes)}
    for bit in range(8 * len(data)):
        flipped = data.copy()
        flipped[bit // 8] ^= 1 << bit % 8
        found.add(whole(flipped, element_bytes))
    assert len(found) == 1 + 8 * len(data)
    words = data.view(f"u{element_bytes}")
    assert whole(np.roll(words, 1).view(np.uint8), element_bytes) not in found


def test_flipped_signs_in_any_two_places_change_the_hash():
    """The highest bit of a word counts least: its multiples have the fewest different sums."""
    found = set()
    for first in range(60):
        for second in range(first):
            values = np.zeros(60, dtype=np.float32)
            values[[first, second]] = -0.0
            found.add(whole(values.view(np.uint8), 4))
    assert len(found) == 60 * 59 // 2


def test_the_definition_does_not_change():
    """Hashes in manifests are compared with hashes of later versions."""
    data = np.arange(3 * tensor_hash.BLOCK, dtype=np.uint32).view(np.uint8)
    assert whole(data, 4) == "f78ad8d4050f074674fd82d54d9c61fa"
