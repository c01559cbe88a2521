"""Samples are stacked where their structures are equal; otherwise the message names both items."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from paceline.core.errors import DataError
from paceline.data.collate import explained, stack_samples


@dataclass(frozen=True)
class Scene:
    image: torch.Tensor
    name: str


def test_samples_of_any_structure_are_stacked():
    samples = [{"image": np.full((2, 2), number), "boxes": (torch.ones(4), number), "name": "a"} for number in (1, 2)]
    batch = stack_samples(samples, [0, 1])
    assert batch["image"].shape == (2, 2, 2)
    assert batch["boxes"][1].tolist() == [1, 2]
    assert batch["name"] == ["a", "a"]
    assert stack_samples([Scene(torch.ones(3), "a"), Scene(torch.ones(3), "b")], [0, 1]).image.shape == (2, 3)


@pytest.mark.parametrize(
    ("samples", "says"),
    [
        ([{"image": 1, "mask": 2}, {"image": 1}], "item 3 has keys image; item 17 has keys image, mask"),
        ([torch.ones(3, 32, 32), torch.ones(3, 32, 30)],
         "items 17 and 3 have sizes 3×32×32 and 3×32×30, which do not stack"),
        ([(1, 2), (1, 2, 3)], "item 3 has 3 values; item 17 has 2 values"),
        ([torch.ones(2), 3], "item 3 has a number; item 17 has a Tensor"),
    ],
)  # fmt: skip
def test_samples_that_do_not_stack_are_named_with_the_way_out(samples, says):
    with pytest.raises(DataError, match=says) as caught:
        stack_samples(samples, [17, 3])
    assert "--collate my.py:pad" in str(caught.value.hint)


def test_an_error_of_the_users_collate_names_it():
    with pytest.raises(DataError, match=r"my.py:pad raised IndexError: tuple index out of range"):
        explained(lambda samples: samples[0][5], "my.py:pad")([(1, 2)])
