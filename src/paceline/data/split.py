"""What a set of labelled images is to the rest of Paceline: something that gives any of its images by number."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

Ids = NDArray[np.int64]


class Batch(NamedTuple):
    """Images ready for the model (float, N×C×H×W) with their labels (int64, N).

    `targets` holds class probabilities (float, N×classes) where augmentation blends images, else None.
    """

    images: torch.Tensor
    labels: torch.Tensor
    targets: torch.Tensor | None = None

    def aligned(self) -> "Batch":
        """Return the batch as memory that begins at a full cache line: products of matrices round by where it does."""
        targets = None if self.targets is None else _aligned(self.targets)
        return Batch(_aligned(self.images), self.labels, targets)

    def pin_memory(self) -> "Batch":
        """Return the batch in page-locked memory, from which a GPU copies while it computes."""
        targets = None if self.targets is None else self.targets.pin_memory()
        return Batch(self.images.pin_memory(), self.labels.pin_memory(), targets)

    def part(self, places: slice) -> "Batch":
        """Return some of the batch, in the memory that it has."""
        targets = None if self.targets is None else self.targets[places]
        return Batch(self.images[places], self.labels[places], targets)


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.data_ptr() % 64 == 0 else tensor.clone()


class Split(Protocol):
    """One part of a data set. What `fetch` returns for an id depends on the id and the epoch, and on nothing else."""

    def __len__(self) -> int:
        """Return how many images there are."""
        ...

    def fetch(self, ids: Ids, epoch: int | None) -> Batch:
        """Return the images with these ids, as training sees them in `epoch`, or as evaluation sees them (None)."""
        ...


@runtime_checkable
class MixingSplit(Split, Protocol):
    """A split whose augmentation may put a second image into the one asked for."""

    def mixing_only(self, ids: Ids) -> Self:
        """Return the split with second images taken from these alone."""
        ...


@runtime_checkable
class GroupingSplit(Split, Protocol):
    """A split that prepares many images at once for less than one batch after the other."""

    @property
    def group(self) -> int:
        """Return how many images are best asked for at once; 1 when it makes no difference."""
        ...


@runtime_checkable
class SkippingSplit(Split, Protocol):
    """A split that may show another image instead of one that cannot be decoded."""

    def unreadable(self) -> list[str]:
        """Return the names of the images that could not be decoded so far, here or in a worker process."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSet:
    """A data set as its source provides it: a training part, a test part, and what the labels mean."""

    train: Split
    test: Split
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    """Channels, height, width of an image as the model sees it."""

    @property
    def num_classes(self) -> int:
        """Return how many different labels there are."""
        return len(self.classes)


class Subset:
    """Some of the images of a split, under new numbers; each keeps the randomness of its old number.

    Images outside the subset never show, not even mixed into one of its own: they may be held out for evaluation.
    """

    def __init__(self, split: Split, ids: Ids) -> None:
        self._split = split.mixing_only(ids) if isinstance(split, MixingSplit) else split
        self._ids = ids
        self.group = split.group if isinstance(split, GroupingSplit) else 1
        """How many images are best asked for at once."""

    def __len__(self) -> int:
        return len(self._ids)

    def unreadable(self) -> list[str]:
        """Return the names of the images that could not be decoded so far, those outside the subset included."""
        return self._split.unreadable() if isinstance(self._split, SkippingSplit) else []

    def fetch(self, ids: Ids, epoch: int | None) -> Batch:
        """Return the images that stand at these places of the subset."""
        return self._split.fetch(self._ids[ids], epoch)
