"""Small sets: all pixels in memory as bytes, a whole batch gathered, augmented and normalised at once."""

from dataclasses import KW_ONLY, dataclass, field, replace

import torch

from paceline.data.augment.draws import Draws, Pixels
from paceline.data.augment.pipeline import Augmentation, Pipeline, as_images, count_classes
from paceline.data.normalisation import Normalisation
from paceline.data.split import Ids, ImageBatch, SampleIds

LARGEST_READY = 16_000_000
"""Maximum pixels of a set that is also kept normalised: 64 MB as fp32."""
GROUP_SAMPLES, GROUP_PIXELS = 512, 1 << 21
"""Limits of a group of samples that are prepared together: samples, and pixels (8 MB as fp32)."""


@dataclass(frozen=True, slots=True, eq=False)
class InMemory:
    """A split whose images (uint8, N×C×H×W) fit in memory."""

    images: torch.Tensor
    labels: torch.Tensor
    _: KW_ONLY
    mean: tuple[float, ...]
    std: tuple[float, ...]
    augmentation: Augmentation | None = None
    pool: SampleIds | None = None
    """The samples that mixup and cutmix may mix into others; None means all."""
    _num_classes: int = field(init=False)
    """Counted once: scanning all labels takes longer than mixing a batch."""
    _ready: torch.Tensor | None = field(init=False)
    """All images normalised, for small sets: a batch without augmentation is then one gather."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_num_classes", count_classes(self.labels))
        ready = None
        if self.images.numel() <= LARGEST_READY:
            ready = as_images(Normalisation(mean=self.mean, std=self.std)(self.images).numpy())
        object.__setattr__(self, "_ready", ready)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def group_size(self) -> int:
        """Return the number of samples to request together: each call of an augmentation step has a high fixed cost."""
        return 1 if self.augmentation is None else max(1, min(GROUP_SAMPLES, GROUP_PIXELS // self.images[0].numel()))

    @property
    def held(self) -> tuple[torch.Tensor, ...]:
        """Return all images and labels."""
        return self.images, self.labels

    def fetch(self, ids: Ids, epoch: int | None) -> ImageBatch:
        """Return the samples with these ids, normalised, and augmented if an epoch is given."""
        if self._ready is not None and (epoch is None or self.augmentation is None):
            indices = torch.from_numpy(ids)
            return ImageBatch(self._ready.index_select(0, indices), self.labels.index_select(0, indices))
        pipeline = Pipeline(
            read=self._read,
            labels=self.labels,
            num_classes=self._num_classes,
            normalise=Normalisation(mean=self.mean, std=self.std),
            augmentation=self.augmentation,
            pool=self.pool,
        )
        return pipeline.batch(ids, epoch)

    def mixing_only(self, ids: SampleIds) -> "InMemory":
        """Return the split with second samples taken from these ids only."""
        return replace(self, pool=ids)

    def _read(self, ids: Ids, _draws: Draws | None) -> Pixels:
        return self.images.numpy().take(ids, axis=0)
