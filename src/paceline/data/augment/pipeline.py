"""From bytes to a batch: the steps of a policy, normalisation and mixing, in the one order that training uses."""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.data.augment.draws import Draws
from paceline.data.augment.erasing import Values
from paceline.data.augment.geometry import Pixels
from paceline.data.augment.mixing import mix_images, mix_labels
from paceline.data.augment.policy import Policy
from paceline.data.split import Batch, Ids


@dataclass(frozen=True, kw_only=True, slots=True)
class Normalisation:
    """Mean and standard deviation of each plane, on the scale 0 … 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def fill(self) -> tuple[int, ...]:
        """Return the mean colour as bytes."""
        return tuple(min(255, round(255 * value)) for value in self.mean)

    def __call__(self, images: Pixels) -> Values:
        """Return the images with mean 0 and standard deviation 1 in every plane of the set."""
        mean, scale = self._shifts()
        values = torch.from_numpy(images).float().sub_(mean).mul_(scale)
        return values.numpy()

    def _shifts(self) -> tuple[torch.Tensor, torch.Tensor]:
        mean, std = (torch.tensor(values).mul_(255).view(1, -1, 1, 1) for values in (self.mean, self.std))
        return mean, std.reciprocal_()


@dataclass(frozen=True, kw_only=True, slots=True)
class Augmentation:
    """What is done to training images, and the seed of its randomness."""

    policy: Policy
    seed: int


class Pipeline:
    """Turns sample ids into batches, given a way to get their bytes.

    `read(ids, draws)` returns bytes, N×C×H×W; draws is None where nothing may be random.
    """

    def __init__(
        self,
        read: Callable[[Ids, Draws | None], Pixels],
        labels: torch.Tensor,
        normalise: Normalisation,
        augmentation: Augmentation | None,
    ) -> None:
        self._read = read
        self._labels = labels
        self._normalise = normalise
        self._seed = augmentation.seed if augmentation is not None else 0
        self._policy = augmentation.policy.filled(normalise.fill) if augmentation is not None else None
        self._num_classes = int(labels.max()) + 1 if len(labels) else 0
        self._pool = np.arange(len(labels))

    def mixing_only(self, ids: Ids) -> "Pipeline":
        """Return the pipeline with second images taken from these alone."""
        limited = copy(self)
        limited._pool = ids
        return limited

    def batch(self, ids: Ids, epoch: int | None) -> Batch:
        """Return the images as training sees them in `epoch`, or as evaluation sees them (None)."""
        labels = self._labels[torch.from_numpy(ids)]
        if epoch is None or self._policy is None:
            return Batch(as_images(self._normalise(self._read(ids, None))), labels)
        draws = Draws(seed=self._seed, epoch=epoch, ids=ids)
        images = self._values(self._policy, draws)
        if self._policy.mixing is None:
            return Batch(as_images(images), labels)
        height, width = images.shape[2:]
        blend = self._policy.mixing.plan(draws, self._pool, (height, width))
        others = self._values(self._policy, Draws(seed=self._seed, epoch=epoch, ids=blend.partners))
        targets = mix_labels(blend, labels, self._labels[torch.from_numpy(blend.partners)], self._num_classes)
        return Batch(as_images(mix_images(blend, images, others)), labels, targets)

    def _values(self, policy: Policy, draws: Draws) -> Values:
        """Return the augmented and normalised images, not yet mixed."""
        pixels = self._read(draws.ids, draws)
        for step in policy.pixel_steps:
            pixels = step(pixels, draws)
        values = self._normalise(pixels)
        for step in policy.value_steps:
            values = step(values, draws)
        return values


def as_images(values: NDArray[np.float32]) -> torch.Tensor:
    """Return the images as a tensor in the memory order that convolutions prefer (pixels first for colour images)."""
    return torch.from_numpy(values).contiguous(memory_format=torch.channels_last)
