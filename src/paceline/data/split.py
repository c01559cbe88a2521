"""Data sets as the rest of Paceline sees them: splits that return any of their samples by id, and facts about them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.data.normalisation import Normalisation
from paceline.data.permutation import Permutation
from paceline.data.tree import Tree

Ids = NDArray[np.int64]
"""Sample ids: indices into a split."""
SampleIds = Ids | Permutation
"""Many sample ids: in memory, or computed by position."""


class ImageBatch(NamedTuple):
    """Images ready for the model (float, N×C×H×W) with their labels (int64, N): the batches of image classification.

    `targets` holds class probabilities (float, N×classes) where augmentation blends images, else None.
    """

    images: torch.Tensor
    labels: torch.Tensor
    targets: torch.Tensor | None = None
    normalise: Normalisation | None = None
    """Set while the images are bytes, a quarter of the size: they are normalised where they are used."""

    def finished(self) -> "ImageBatch":
        """Return the batch with its images normalised."""
        if self.normalise is None:
            return self
        return self._replace(images=self.normalise(self.images), normalise=None)


def members(ids: Ids, pool: SampleIds) -> NDArray[np.bool_]:
    """Tell for each id whether it is one of the pool."""
    return pool.has(ids) if isinstance(pool, Permutation) else np.isin(ids, pool)


class Split(Protocol):
    """Training or test samples. What `fetch` returns for an id depends only on the id and the epoch.

    A batch is any tree of tensors: what the task of the run takes. Usually it is a pair (inputs, targets).
    """

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def fetch(self, ids: Ids, epoch: int | None) -> Tree:
        """Return the samples with these ids as a batch, as training sees them in `epoch`, or evaluation (None)."""
        ...


@runtime_checkable
class MixingSplit(Split, Protocol):
    """A split whose augmentation may mix a second sample into the requested one."""

    def mixing_only(self, ids: SampleIds) -> Self:
        """Return the split with second samples taken from these ids only."""
        ...


@runtime_checkable
class GroupingSplit(Split, Protocol):
    """A split that prepares many samples together at a lower cost than batch by batch: a sample is a row of tensors."""

    @property
    def group_size(self) -> int:
        """Return the number of samples to request together; 1 if it makes no difference."""
        ...


@runtime_checkable
class ShrinkingSplit(Split, Protocol):
    """A split whose batches are smaller before their last step."""

    def fetch_unfinished(self, ids: Ids, epoch: int | None) -> Tree:
        """Return a batch whose last step is done when it is moved to its device."""
        ...


@runtime_checkable
class SkippingSplit(Split, Protocol):
    """A split that may replace an image that cannot be decoded by another one."""

    def unreadable(self) -> list[str]:
        """Return the names of the images that could not be decoded so far, here or in a worker process."""
        ...


@runtime_checkable
class HeldSplit(Split, Protocol):
    """A split whose samples follow from tensors in memory."""

    @property
    def held(self) -> Sequence[torch.Tensor]:
        """Return these tensors, with all samples."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSet:
    """A data set as its source provides it: a training split, a test split, and what it knows about itself."""

    train: Split
    test: Split
    task: str = "classification"
    """The task that is usually learnt from it; --task overrides it."""
    classes: tuple[str, ...] = ()
    image_shape: tuple[int, int, int] | None = None
    """Channels, height, width of an image as the model sees it; None if samples are not images."""
    warnings: tuple[str, ...] = ()
    """What looks like a mistake in the data, a sentence each."""
    named_facts: Mapping[str, Any] = field(default_factory=dict)
    """Facts under other names, such as vocab_size."""

    @property
    def num_classes(self) -> int:
        """Return the number of classes."""
        return len(self.classes)

    @property
    def facts(self) -> dict[str, Any]:
        """Return what models and tasks may ask for by name: num_classes, image_shape, vocab_size, ..."""
        facts: dict[str, Any] = {}
        if self.classes:
            facts |= {"classes": self.classes, "num_classes": self.num_classes}
        if self.image_shape is not None:
            channels, height, _ = self.image_shape
            facts |= {"image_shape": self.image_shape, "in_channels": channels, "image_size": height}
        return facts | dict(self.named_facts)


class Subset:
    """Some samples of a split under new ids; the randomness of each still depends on its old id.

    Samples outside the subset are never returned, not even mixed into others: they may be held out for evaluation.
    """

    def __init__(self, split: Split, ids: SampleIds) -> None:
        self._split = split.mixing_only(ids) if isinstance(split, MixingSplit) else split
        self._ids = ids
        self.group_size = split.group_size if isinstance(split, GroupingSplit) else 1
        """The number of samples to request together."""

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def held(self) -> Sequence[torch.Tensor]:
        """Return the tensors with all samples, those outside the subset included; none if they are not in memory."""
        return self._split.held if isinstance(self._split, HeldSplit) else ()

    def unreadable(self) -> list[str]:
        """Return the names of the images that could not be decoded so far, those outside the subset included."""
        return self._split.unreadable() if isinstance(self._split, SkippingSplit) else []

    def fetch(self, ids: Ids, epoch: int | None) -> Tree:
        """Return the samples with these ids of the subset."""
        return self._split.fetch(self._ids[ids], epoch)

    def fetch_unfinished(self, ids: Ids, epoch: int | None) -> Tree:
        """Return the same samples, before their last step if that makes them smaller."""
        return fetch_unfinished(self._split, self._ids[ids], epoch)


def fetch_unfinished(split: Split, ids: Ids, epoch: int | None) -> Tree:
    """Return a batch as it is sent from one process to another: `moved` finishes it."""
    return (split.fetch_unfinished if isinstance(split, ShrinkingSplit) else split.fetch)(ids, epoch)
