"""Small sets: all pixels in memory as bytes, a whole batch gathered, augmented and normalised at once."""

from copy import copy

import torch

from paceline.data.augment.draws import Draws
from paceline.data.augment.geometry import Pixels
from paceline.data.augment.pipeline import Augmentation, Normalisation, Pipeline
from paceline.data.split import Batch, Ids


class InMemory:
    """A split whose images (uint8, N×C×H×W) fit in memory."""

    def __init__(
        self,
        images: torch.Tensor,
        labels: torch.Tensor,
        *,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        augmentation: Augmentation | None = None,
    ) -> None:
        self._images = images
        self._pipeline = Pipeline(self._read, labels, Normalisation(mean=mean, std=std), augmentation)

    def __len__(self) -> int:
        return len(self._images)

    def fetch(self, ids: Ids, epoch: int | None) -> Batch:
        """Return the images with these ids, augmented where an epoch is given, normalised always."""
        return self._pipeline.batch(ids, epoch)

    def mixing_only(self, ids: Ids) -> "InMemory":
        """Return the split with second images (mixup, cutmix) taken from these alone."""
        limited = copy(self)
        limited._pipeline = self._pipeline.mixing_only(ids)
        return limited

    def _read(self, ids: Ids, _draws: Draws | None) -> Pixels:
        return self._images.numpy().take(ids, axis=0)
