"""Mixup and cutmix, with a partner drawn from the whole training set instead of from the batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.data.augment.draws import (
    Draws,
    Integers,
    Purpose,
    Values,
    below,
    beta_table,
    halves,
    quarters,
    table_index,
)
from paceline.data.augment.erasing import box_masks
from paceline.data.split import Ids


class Blend(NamedTuple):
    """How each image is mixed: its partner, the weight of the image itself, and where (cutmix)."""

    partners: Ids
    weight: NDArray[np.float32]
    cut: NDArray[np.bool_]
    """True where the partner's pixel replaces the image's own, N×H×W; all False for mixup."""
    cuts: NDArray[np.bool_]
    """True for the images that cutmix cuts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mixing:
    """Mixup with Beta(alpha, alpha), cutmix with its own alpha, or for each image one of the two at random."""

    mixup: float | None = None
    cutmix: float | None = None

    def plan(self, draws: Draws, partners: Callable[[Integers], Ids], shape: tuple[int, int]) -> Blend:
        """Decide for each sample; `partners` turns 32-bit integers into ids of training samples."""
        height, width = shape
        bits = draws.bits(Purpose.MIX, 0)
        (half, _), (*_, quarter, side) = halves(bits), quarters(bits)
        cuts = self._cuts(side)
        weight = self._weights(table_index(quarter), cuts)
        extent = np.sqrt(1.0 - weight)
        box_height, box_width = ((extent * size).astype(np.int64) for size in shape)
        upper, lower = halves(draws.bits(Purpose.MIX, 1))
        top, left = below(height, upper) - box_height // 2, below(width, lower) - box_width // 2
        cut = box_masks(shape, (top, left), (box_height, box_width)) & cuts[:, None, None]
        kept = 1.0 - cut.sum(axis=(1, 2)) / (height * width)
        return Blend(partners(half), np.where(cuts, kept, weight).astype(np.float32), cut, cuts)

    def _cuts(self, side: Integers) -> NDArray[np.bool_]:
        if self.mixup is not None and self.cutmix is not None:
            return side < 1 << 15
        return np.full(len(side), self.cutmix is not None)

    def _weights(self, indices: Integers, cuts: NDArray[np.bool_]) -> NDArray[np.float64]:
        blended = beta_table(self.mixup if self.mixup is not None else 1.0)[indices]
        cut = beta_table(self.cutmix if self.cutmix is not None else 1.0)[indices]
        return np.where(cuts, cut, blended)


def mix_images(blend: Blend, images: Values, partners: Values) -> Values:
    """Return the mixed images; changes `images` in place."""
    faded = np.flatnonzero(~blend.cuts)
    weight = blend.weight[faded, None, None, None]
    images[faded] = images[faded] * weight + partners[faded] * (np.float32(1) - weight)
    np.copyto(images, partners, where=blend.cut[:, None])
    return images


def mix_labels(blend: Blend, labels: torch.Tensor, partners: torch.Tensor, num_classes: int) -> torch.Tensor:
    """Return class probabilities: each label has the weight of its image."""
    weight = torch.from_numpy(blend.weight)[:, None]
    targets = torch.zeros(len(labels), num_classes)
    targets.scatter_add_(1, labels[:, None], weight)
    return targets.scatter_add_(1, partners[:, None], 1.0 - weight)
