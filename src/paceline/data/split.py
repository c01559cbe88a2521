"""Data sets as the rest of Paceline sees them: splits that return any of their samples by id."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

Ids = NDArray[np.int64]
"""Sample ids: indices into a split."""


class Batch(NamedTuple):
    """Images ready for the model (float, N×C×H×W) with their labels (int64, N).

    `targets` holds class probabilities (float, N×classes) where augmentation blends images, else None.
    """

    images: torch.Tensor
    labels: torch.Tensor
    targets: torch.Tensor | None = None

    def aligned(self) -> "Batch":
        """Return a 64-byte aligned batch: the rounding of matrix products can depend on alignment."""
        targets = None if self.targets is None else _aligned(self.targets)
        return Batch(_aligned(self.images), self.labels, targets)

    def to(self, device: torch.device, memory_format: torch.memory_format) -> "Batch":
        """Return the batch on a device; the copy runs in the background if the batch is in page-locked memory.

        The layout changes on the device: on the host it would go through pageable memory, for which the host waits.
        """
        targets = None if self.targets is None else self.targets.to(device, non_blocking=True)
        images = self.images.to(device, non_blocking=True).to(memory_format=memory_format)
        return Batch(images, self.labels.to(device, non_blocking=True), targets)

    def pin_memory(self) -> "Batch":
        """Return the batch in page-locked memory, from which a GPU copies while it computes."""
        targets = None if self.targets is None else self.targets.pin_memory()
        return Batch(self.images.pin_memory(), self.labels.pin_memory(), targets)

    def select(self, indices: slice) -> "Batch":
        """Return a view of some of the samples."""
        targets = None if self.targets is None else self.targets[indices]
        return Batch(self.images[indices], self.labels[indices], targets)


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.data_ptr() % 64 == 0 else tensor.clone()


class Split(Protocol):
    """Training or test samples. What `fetch` returns for an id depends only on the id and the epoch."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def fetch(self, ids: Ids, epoch: int | None) -> Batch:
        """Return the samples with these ids, as training sees them in `epoch`, or as evaluation sees them (None)."""
        ...


@runtime_checkable
class MixingSplit(Split, Protocol):
    """A split whose augmentation may mix a second sample into the requested one."""

    def mixing_only(self, ids: Ids) -> Self:
        """Return the split with second samples taken from these ids only."""
        ...


@runtime_checkable
class GroupingSplit(Split, Protocol):
    """A split that prepares many samples together at a lower cost than batch by batch."""

    @property
    def group_size(self) -> int:
        """Return the number of samples to request together; 1 if it makes no difference."""
        ...


@runtime_checkable
class SkippingSplit(Split, Protocol):
    """A split that may replace an image that cannot be decoded by another one."""

    def unreadable(self) -> list[str]:
        """Return the names of the images that could not be decoded so far, here or in a worker process."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSet:
    """A data set as its source provides it: a training split, a test split, and the names of the classes."""

    train: Split
    test: Split
    classes: tuple[str, ...]
    image_shape: tuple[int, int, int]
    """Channels, height, width of an image as the model sees it."""

    @property
    def num_classes(self) -> int:
        """Return the number of classes."""
        return len(self.classes)


class Subset:
    """Some samples of a split under new ids; the randomness of each still depends on its old id.

    Samples outside the subset are never returned, not even mixed into others: they may be held out for evaluation.
    """

    def __init__(self, split: Split, ids: Ids) -> None:
        self._split = split.mixing_only(ids) if isinstance(split, MixingSplit) else split
        self._ids = ids
        self.group_size = split.group_size if isinstance(split, GroupingSplit) else 1
        """The number of samples to request together."""

    def __len__(self) -> int:
        return len(self._ids)

    def unreadable(self) -> list[str]:
        """Return the names of the images that could not be decoded so far, those outside the subset included."""
        return self._split.unreadable() if isinstance(self._split, SkippingSplit) else []

    def fetch(self, ids: Ids, epoch: int | None) -> Batch:
        """Return the samples with these ids of the subset."""
        return self._split.fetch(self._ids[ids], epoch)
