"""Normalisation of images: from bytes to values with mean 0 and standard deviation 1 in every plane of the set."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Normalisation:
    """Mean and standard deviation of each plane, on the scale 0 … 1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def fill(self) -> tuple[int, ...]:
        """Return the mean colour as bytes."""
        return tuple(min(255, round(255 * value)) for value in self.mean)

    def __call__(self, images: Tensor) -> Tensor:
        """Return normalised images (N×C×H×W), on their device and in their layout: the same bits on each."""
        mean, scale = _shifts(self, images.device)
        return images.float().sub_(mean).mul_(scale)


@lru_cache
def _shifts(normalisation: Normalisation, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return mean and factor of each plane; a GPU is waited for once."""
    mean, std = (
        torch.tensor(values, dtype=torch.float32).mul_(255).view(1, -1, 1, 1)
        for values in (normalisation.mean, normalisation.std)
    )
    return mean.to(device), std.reciprocal_().to(device)
