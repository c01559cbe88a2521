"""Regions of an image replaced after normalisation: random erasing with noise, and cutout."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.core.keys import mix_each
from paceline.data.augment.draws import (
    TABLE_BITS,
    TABLE_SIZE,
    Draws,
    Purpose,
    Values,
    below,
    fraction,
    halves,
    log_uniform_table,
    normal_table,
    quarters,
    table_index,
)

ATTEMPTS = 10
AREA = (0.02, 1 / 3)
ASPECT = (0.3, 1 / 0.3)


@dataclass(frozen=True, slots=True)
class Erase:
    """One box per image, with probability `chance`, replaced by noise from the standard normal distribution."""

    chance: float

    def __call__(self, images: Values, draws: Draws) -> Values:
        """Return the images, some with a box of noise; changes them in place."""
        channels, height, width = images.shape[1:]
        area = height * width
        half, _ = halves(draws.bits(Purpose.ERASE, 0))
        hit = np.flatnonzero(fraction(half) < self.chance)
        chosen = draws.of(hit)
        box_height, box_width = _erased_sizes(height, width, chosen)
        upper, lower = halves(chosen.bits(Purpose.ERASE, 1))
        top, left = below(height - box_height + 1, upper), below(width - box_width + 1, lower)
        image, pixel = np.divmod(np.flatnonzero(box_masks((height, width), (top, left), (box_height, box_width))), area)
        bits = mix_each(0, chosen.bits(Purpose.ERASE_NOISE).view(np.int64)[image] + pixel)
        start = hit[image] * (channels * area) + pixel
        for plane in range(channels):
            draw = (bits >> np.uint64(TABLE_BITS * plane)).view(np.int64) & (TABLE_SIZE - 1)
            images.reshape(-1)[start + plane * area] = normal_table()[draw]
        return images


@dataclass(frozen=True, slots=True)
class Cutout:
    """A square of the mean colour around a random pixel of each image; it may extend beyond the edge."""

    size: int

    def __call__(self, images: Values, draws: Draws) -> Values:
        """Return the images, each with a square at zero; changes them in place."""
        height, width = images.shape[2:]
        upper, lower = halves(draws.bits(Purpose.CUTOUT))
        top, left = below(height, upper) - self.size // 2, below(width, lower) - self.size // 2
        side = np.full(len(images), self.size)
        cut = box_masks((height, width), (top, left), (side, side))
        np.copyto(images, np.float32(0), where=cut[:, None])
        return images


def _erased_sizes(height: int, width: int, draws: Draws) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return height and width of each box: the first of ten attempts that is smaller than the image, else 0."""
    aspects = log_uniform_table(*ASPECT)
    low, high = AREA
    sizes = np.zeros((2, len(draws.ids)), np.int64)
    pending = np.arange(len(draws.ids))
    for attempt in range(ATTEMPTS):
        bits = draws.of(pending).bits(Purpose.ERASE, 2, attempt)
        (half, _), (*_, quarter) = halves(bits), quarters(bits)
        area = (low + (high - low) * fraction(half)) * (height * width)
        aspect = aspects[table_index(quarter)]
        tried = np.rint(np.sqrt(np.stack([area * aspect, area / aspect]))).astype(np.int64)
        fits = (tried[0] < height) & (tried[1] < width)
        sizes[:, pending[fits]] = tried[:, fits]
        pending = pending[~fits]
        if not len(pending):
            break
    return sizes[0], sizes[1]


def box_masks(
    shape: tuple[int, int],
    corner: tuple[NDArray[np.int64], NDArray[np.int64]],
    size: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> NDArray[np.bool_]:
    """Return a mask per image (N×H×W) that is true inside its box."""
    rows, columns = (
        (np.arange(length) >= start[:, None]) & (np.arange(length) < (start + extent)[:, None])
        for length, start, extent in zip(shape, corner, size, strict=True)
    )
    return rows[:, :, None] & columns[:, None, :]
