"""Where an image is cut and which way it faces: crop with padding, flip, alternating flip."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from paceline.data.augment.draws import Draws, Purpose, below, halves

Pixels = NDArray[np.uint8]
"""Images as bytes, N×C×H×W: planes let every operation run along contiguous rows."""


@dataclass(frozen=True, slots=True)
class Crop:
    """A window of the image's own size out of the image with a border around it."""

    padding: int
    border: Literal["constant", "reflect"] = "constant"

    def __call__(self, images: Pixels, draws: Draws) -> Pixels:
        """Return a random window of each image."""
        padded = self._pad(images)
        windows = sliding_window_view(padded, images.shape[2:], axis=(2, 3))
        top, left = (below(2 * self.padding + 1, half) for half in halves(draws.bits(Purpose.CROP)))
        return windows.transpose(0, 2, 3, 1, 4, 5)[np.arange(len(images)), top, left]

    def _pad(self, images: Pixels) -> Pixels:
        edge = self.padding
        if self.border == "reflect":
            rows, columns = (_reflected(size, edge) for size in images.shape[2:])
            return images.take(rows, axis=2).take(columns, axis=3)
        num, channels, height, width = images.shape
        padded = np.zeros((num, channels, height + 2 * edge, width + 2 * edge), np.uint8)
        padded[:, :, edge : edge + height, edge : edge + width] = images
        return padded


@dataclass(frozen=True, slots=True)
class Flip:
    """Left and right exchanged in half of the images."""

    def __call__(self, images: Pixels, draws: Draws) -> Pixels:
        """Return the images, half of them mirrored."""
        return mirrored(images, _odd(draws.bits(Purpose.FLIP)))


@dataclass(frozen=True, slots=True)
class AlternatingFlip:
    """Each image mirrored in every other epoch, half of them in the even ones: all sides are seen equally often."""

    def __call__(self, images: Pixels, draws: Draws) -> Pixels:
        """Return the images, mirrored where it is their turn."""
        first = Draws(seed=draws.seed, epoch=0, ids=draws.ids)
        return mirrored(images, _odd(first.bits(Purpose.FLIP)) ^ bool(draws.epoch % 2))


def mirrored(images: Pixels, which: NDArray[np.bool_]) -> Pixels:
    """Exchange left and right where `which` says so, in place."""
    places = np.flatnonzero(which)
    images[places] = images[places][..., ::-1]
    return images


def _odd(bits: NDArray[np.uint64]) -> NDArray[np.bool_]:
    return (bits >> np.uint64(63)).astype(np.bool_)


def _reflected(size: int, edge: int) -> NDArray[np.intp]:
    """Return the places of a row with `edge` mirrored pixels at both ends, the outermost pixel not repeated."""
    return np.pad(np.arange(size), edge, mode="reflect")
