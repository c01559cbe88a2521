"""Grouping gradients into buckets, where DDP ends them."""

import pytest

from paceline.parallel.gradient_buckets import FIRST, LARGEST, group_gradients

MB = 1 << 20


def grouped(sizes: list[int], kinds: str | None = None, largest_mb: float | None = None) -> list[list[int]]:
    """Return the sizes of each bucket."""
    items = list(zip(kinds or "a" * len(sizes), sizes, strict=True))
    found = group_gradients(items, lambda item: item[0], lambda item: item[1], largest_mb)
    return [[size for _, size in bucket] for bucket in found]


@pytest.mark.parametrize(
    ("sizes", "buckets"),
    [
        ([], []),
        ([5], [[5]]),
        ([FIRST - 1, 7, 7], [[FIRST - 1, 7], [7]]),
        ([FIRST, 7, LARGEST, 7], [[FIRST], [7, LARGEST], [7]]),
        ([LARGEST * 2, LARGEST * 2], [[LARGEST * 2], [LARGEST * 2]]),
    ],
)
def test_a_bucket_is_full_once_it_has_reached_its_size(sizes, buckets):
    assert grouped(sizes) == buckets


def test_a_bucket_has_one_kind():
    assert grouped([1, 2, 3, 4], kinds="aabb") == [[1, 2], [3, 4]]


def test_a_largest_size_below_that_of_the_first_bucket_holds_for_all():
    assert grouped([MB // 2] * 4, largest_mb=0.5) == [[MB // 2]] * 4
    assert grouped([MB // 2] * 5, largest_mb=2) == [[MB // 2] * 2, [MB // 2] * 3]
