"""Batches as trees: tensors in tuples, lists, dicts, named tuples or dataclasses, to any depth."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

Tree = Any
"""What a collate function returns: a tensor, or a structure of tensors; other values in it are left alone."""

ALIGNMENT = 64
"""Bytes of a cache line: the rounding of matrix products can depend on where a tensor starts."""


@runtime_checkable
class Unfinished(Protocol):
    """A batch with a step left that is done on its device, so that less is sent."""

    def finished(self) -> Tree:
        """Return the batch after that step."""
        ...


def map_leaves(tree: Tree, change: Callable[[Tensor], Tensor]) -> Tree:
    """Return a tree of the same structure with every tensor changed."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, tuple):
        inner = [map_leaves(value, change) for value in tree]
        return type(tree)(*inner) if hasattr(tree, "_fields") else tuple(inner)
    if isinstance(tree, list):
        return [map_leaves(value, change) for value in tree]
    if isinstance(tree, dict):
        return {key: map_leaves(value, change) for key, value in tree.items()}
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        fields = [field.name for field in dataclasses.fields(tree) if field.init]
        return dataclasses.replace(tree, **{name: map_leaves(getattr(tree, name), change) for name in fields})
    return tree


def leaves(tree: Tree) -> Iterator[Tensor]:
    """Yield the tensors of a tree, in order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, tuple | list):
        for value in tree:
            yield from leaves(value)
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from leaves(value)
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for field in dataclasses.fields(tree):
            yield from leaves(getattr(tree, field.name))


def align_leaves(tree: Tree) -> Tree:
    """Return the tree with every tensor at the start of a cache line."""
    return map_leaves(tree, _aligned)


def _aligned(tensor: Tensor) -> Tensor:
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()


def moved(tree: Tree, device: torch.device, memory_format: torch.memory_format) -> Tree:
    """Return the finished tree on a device; the copy runs in the background if a tensor is in page-locked memory.

    The layout of images changes on the device: on the host it would go through pageable memory, for which the host
    waits.
    """

    def laid_out(tensor: Tensor) -> Tensor:
        is_image = tensor.dim() == 4 and tensor.is_floating_point()
        return tensor.to(memory_format=memory_format) if is_image else tensor

    there = map_leaves(tree, lambda tensor: tensor.to(device, non_blocking=True))
    return map_leaves(there.finished() if isinstance(there, Unfinished) else there, laid_out)


def pinned(tree: Tree) -> Tree:
    """Return the tree in page-locked memory, from which a GPU copies while it computes."""
    return map_leaves(tree, Tensor.pin_memory)


def rows(tree: Tree, indices: slice) -> Tree:
    """Return views of some rows of every tensor."""
    return map_leaves(tree, lambda tensor: tensor[indices])


def first_sample(tree: Tree) -> Tree:
    """Return the first row of every tensor."""
    return map_leaves(tree, lambda tensor: tensor[0])


def tree_bytes(tree: Tree) -> bytes:
    """Return the contents of all tensors, to compare or hash them."""
    return b"".join(_bytes(tensor) for tensor in leaves(tree))


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def concatenated(trees: Sequence[Tree]) -> Tree:
    """Return one tree with the rows of several of the same structure."""
    first = trees[0]
    if isinstance(first, Tensor):
        return torch.cat(list(trees))
    if isinstance(first, tuple | list):
        inner = [concatenated([tree[place] for tree in trees]) for place in range(len(first))]
        return type(first)(*inner) if hasattr(first, "_fields") else type(first)(inner)
    if isinstance(first, dict):
        return {key: concatenated([tree[key] for tree in trees]) for key in first}
    if dataclasses.is_dataclass(first) and not isinstance(first, type):
        fields = [field.name for field in dataclasses.fields(first) if field.init]
        inner = {name: concatenated([getattr(tree, name) for tree in trees]) for name in fields}
        return dataclasses.replace(first, **inner)
    return first
