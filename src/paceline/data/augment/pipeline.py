"""From bytes to a batch: the steps of a policy, then normalisation and mixing."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.data.augment.draws import Draws, Integers, Pixels, Values, below
from paceline.data.augment.mixing import mix_images, mix_labels
from paceline.data.augment.policy import Policy
from paceline.data.normalisation import Normalisation
from paceline.data.split import Ids, ImageBatch, SampleIds


@dataclass(frozen=True, kw_only=True, slots=True)
class Augmentation:
    """The augmentation of training images, and its random seed."""

    policy: Policy
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pipeline:
    """Turns sample ids into batches."""

    read: Callable[[Ids, Draws | None], Pixels]
    """Returns the bytes of some samples, N×C×H×W; the draws are None in evaluation."""
    labels: torch.Tensor
    num_classes: int
    """Classes of mixed labels: one more than the largest label."""
    normalise: Normalisation
    augmentation: Augmentation | None
    pool: SampleIds | None
    """The samples that may be mixed into others; None means all."""

    def batch(self, ids: Ids, epoch: int | None) -> ImageBatch:
        """Return the samples as training sees them in `epoch`, or as evaluation sees them (None)."""
        return self.unfinished(ids, epoch).finished()

    def unfinished(self, ids: Ids, epoch: int | None) -> ImageBatch:
        """Return the same samples, as bytes where normalising them is the only step left."""
        labels = self.labels[torch.from_numpy(ids)]
        if epoch is None or self.augmentation is None:
            return self._as_bytes(self.read(ids, None), labels)
        policy = self.augmentation.policy.filled(self.normalise.fill)
        draws = Draws(seed=self.augmentation.seed, epoch=epoch, ids=ids)
        if policy.mixing is None and not policy.value_steps:
            return self._as_bytes(self._pixels(policy, draws), labels)
        images = self._values(policy, draws)
        if policy.mixing is None:
            return ImageBatch(as_images(images), labels)
        height, width = images.shape[2:]
        blend = policy.mixing.plan(draws, self._partners, (height, width))
        others = self._values(policy, replace(draws, ids=blend.partners))
        targets = mix_labels(blend, labels, self.labels[torch.from_numpy(blend.partners)], self.num_classes)
        return ImageBatch(as_images(mix_images(blend, images, others)), labels, targets)

    def _partners(self, half: Integers) -> Ids:
        """Return the partners that 32-bit integers choose from the pool."""
        if self.pool is None:
            return below(len(self.labels), half)
        return self.pool[below(len(self.pool), half)]

    def _values(self, policy: Policy, draws: Draws) -> Values:
        """Return the augmented and normalised images, not yet mixed."""
        values = self.normalise(torch.from_numpy(self._pixels(policy, draws))).numpy()
        for step in policy.value_steps:
            values = step(values, draws)
        return values

    def _pixels(self, policy: Policy, draws: Draws) -> Pixels:
        pixels = self.read(draws.ids, draws)
        if policy.pixel_steps:
            pixels = np.ascontiguousarray(pixels)
        for step in policy.pixel_steps:
            pixels = step(pixels, draws)
        return pixels

    def _as_bytes(self, pixels: Pixels, labels: torch.Tensor) -> ImageBatch:
        images = torch.from_numpy(pixels).contiguous(memory_format=torch.channels_last)
        return ImageBatch(images, labels, normalise=self.normalise)


def count_classes(labels: torch.Tensor) -> int:
    """Return one more than the largest label."""
    return int(labels.max()) + 1 if len(labels) else 0


def as_images(values: NDArray[np.float32]) -> torch.Tensor:
    """Return the images as a tensor, channels-last for colour images, which is faster for convolutions."""
    return torch.from_numpy(values).contiguous(memory_format=torch.channels_last)
