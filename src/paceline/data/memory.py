"""Small sets: all pixels in memory as bytes, a whole batch gathered, augmented and normalised at once."""

from dataclasses import KW_ONLY, dataclass, replace

import torch

from paceline.data.augment.draws import Draws
from paceline.data.augment.geometry import Pixels
from paceline.data.augment.pipeline import Augmentation, Normalisation, Pipeline
from paceline.data.split import Batch, Ids


@dataclass(frozen=True, slots=True, eq=False)
class InMemory:
    """A split whose images (uint8, N×C×H×W) fit in memory."""

    images: torch.Tensor
    labels: torch.Tensor
    _: KW_ONLY
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: Augmentation | None = None
    pool: Ids | None = None
    """The samples that mixup and cutmix may mix into others; None means all."""

    def __len__(self) -> int:
        return len(self.labels)

    def fetch(self, ids: Ids, epoch: int | None) -> Batch:
        """Return the images with these ids, augmented where an epoch is given, normalised always."""
        pipeline = Pipeline(
            read=self._read,
            labels=self.labels,
            normalise=Normalisation(mean=self.mean, std=self.std),
            augmentation=self.augmentation,
            pool=self.pool,
        )
        return pipeline.batch(ids, epoch)

    def mixing_only(self, ids: Ids) -> "InMemory":
        """Return the split with second images taken from these alone."""
        return replace(self, pool=ids)

    def _read(self, ids: Ids, _draws: Draws | None) -> Pixels:
        return self.images.numpy().take(ids, axis=0)
