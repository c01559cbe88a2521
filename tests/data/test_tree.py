"""Batches as trees: every tensor is reached, everything else is left alone."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch.overrides import TorchFunctionMode

from paceline.data.tree import align_leaves, leaves, map_leaves, moved, rows, tree_bytes


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass(frozen=True)
class Graph:
    nodes: torch.Tensor
    name: str


def nested():
    return {"pair": Pair(torch.arange(6), None), "list": [torch.ones(6, 2), ("text", torch.zeros(6))],
            "graph": Graph(torch.full((6,), 7), "ring")}  # fmt: skip


def test_every_tensor_is_changed_and_the_structure_is_kept():
    doubled = map_leaves(nested(), lambda tensor: tensor * 2)
    assert isinstance(doubled["pair"], Pair)
    assert doubled["pair"].first.tolist() == [0, 2, 4, 6, 8, 10]
    assert doubled["pair"].second is None
    assert doubled["list"][1][0] == "text"
    assert doubled["graph"].name == "ring"
    assert doubled["graph"].nodes[0] == 14
    assert [tuple(leaf.shape) for leaf in leaves(doubled)] == [(6,), (6, 2), (6,), (6,)]


def test_rows_are_views():
    whole = nested()
    some = rows(whole, slice(2, 5))
    assert some["pair"].first.tolist() == [2, 3, 4]
    assert some["list"][0].data_ptr() == whole["list"][0][2:].data_ptr()


def test_an_aligned_tree_starts_at_full_cache_lines_with_the_same_values():
    shifted = rows(nested(), slice(1, 6))
    assert any(leaf.data_ptr() % 64 for leaf in leaves(shifted))
    assert all(leaf.data_ptr() % 64 == 0 for leaf in leaves(align_leaves(shifted)))
    assert tree_bytes(align_leaves(shifted)) == tree_bytes(shifted)


@pytest.mark.parametrize(("dtype", "changes"), [(torch.float32, True), (torch.int64, False)])
def test_only_images_change_their_memory_format(dtype, changes):
    batch = (torch.zeros(2, 3, 4, 4, dtype=dtype), torch.zeros(2, 3))
    images, vectors = moved(batch, torch.device("cpu"), torch.channels_last)
    assert images.is_contiguous(memory_format=torch.channels_last) == changes
    assert vectors.is_contiguous()


class Conversions(TorchFunctionMode):
    """Records the device on which each `to` starts, and whether it changes the layout."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, bool]] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.to:
            self.found.append((args[0].device.type, "memory_format" in (kwargs or {})))
        return func(*args, **(kwargs or {}))


def test_images_change_their_layout_on_the_device():
    with Conversions() as conversions:
        moved(torch.zeros(2, 3, 4, 4), torch.device("meta"), torch.channels_last)
    assert conversions.found == [("cpu", False), ("meta", True)]


def test_trees_with_other_values_have_other_bytes():
    other = nested()
    other["graph"].nodes[3] = 8
    assert tree_bytes(other) != tree_bytes(nested())
