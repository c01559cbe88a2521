"""Flips and crops of images; the random resized crop stretches a box of random area and shape to the image size.

The two passes of the bicubic filter are matrix products of bytes with weights that are multiples of 2**-14. Every sum
is such a multiple below 2**10, so a 32-bit float holds it exactly and no order of summation can change a bit.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from paceline.data.augment.draws import (
    Draws,
    Pixels,
    Purpose,
    below,
    fraction,
    halves,
    log_uniform_table,
    quarters,
    table_index,
)

ATTEMPTS = 10
RATIO = (3 / 4, 4 / 3)
WEIGHT_STEPS = 1 << 14


@dataclass(frozen=True, slots=True)
class Crop:
    """A window of the size of the image, out of the padded image."""

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
    """Half of the images mirrored left to right."""

    def __call__(self, images: Pixels, draws: Draws) -> Pixels:
        """Return the images, half of them mirrored."""
        return mirrored(images, _odd(draws.bits(Purpose.FLIP)))


@dataclass(frozen=True, slots=True)
class AlternatingFlip:
    """Each image mirrored in every other epoch, half of them in the even ones: both sides are equally frequent."""

    def __call__(self, images: Pixels, draws: Draws) -> Pixels:
        """Return the images, some of them mirrored in this epoch."""
        first = Draws(seed=draws.seed, epoch=0, ids=draws.ids)
        return mirrored(images, _odd(first.bits(Purpose.FLIP)) ^ bool(draws.epoch % 2))


def mirrored(images: Pixels, which: NDArray[np.bool_]) -> Pixels:
    """Mirror the images where `which` is true, in place."""
    indices = np.flatnonzero(which)
    images[indices] = images[indices][..., ::-1]
    return images


def _odd(bits: NDArray[np.uint64]) -> NDArray[np.bool_]:
    return (bits >> np.uint64(63)).astype(np.bool_)


def _reflected(size: int, edge: int) -> NDArray[np.intp]:
    """Return the pixel indices of a row with `edge` mirrored pixels at both ends, the outermost not repeated."""
    return np.pad(np.arange(size), edge, mode="reflect")


Weights = NDArray[np.float32]


class Boxes(NamedTuple):
    """The box of each image that is kept, in pixels."""

    top: NDArray[np.int64]
    left: NDArray[np.int64]
    height: NDArray[np.int64]
    width: NDArray[np.int64]


def choose_boxes(heights: NDArray[np.int64], widths: NDArray[np.int64], smallest: float, draws: Draws) -> Boxes:
    """Return a box per image: area uniform in [smallest, 1] of the image, logarithm of its shape uniform in RATIO.

    The first of ten attempts that fits; if none does, the central box with the nearest allowed aspect ratio.
    """
    ratios = log_uniform_table(*RATIO)
    box_heights, box_widths = _middle_sizes(heights, widths)
    pending = np.arange(len(heights))
    for attempt in range(ATTEMPTS):
        bits = draws.of(pending).bits(Purpose.RESIZED_CROP, 0, attempt)
        (half, _), (*_, quarter) = halves(bits), quarters(bits)
        area = (smallest + (1.0 - smallest) * fraction(half)) * (heights[pending] * widths[pending])
        ratio = ratios[table_index(quarter)]
        width, height = (np.rint(np.sqrt(side)).astype(np.int64) for side in (area * ratio, area / ratio))
        fits = (width <= widths[pending]) & (height <= heights[pending]) & (width > 0) & (height > 0)
        box_heights[pending[fits]], box_widths[pending[fits]] = height[fits], width[fits]
        pending = pending[~fits]
        if not len(pending):
            break
    upper, lower = halves(draws.bits(Purpose.RESIZED_CROP, 1))
    top, left = below(heights - box_heights + 1, upper), below(widths - box_widths + 1, lower)
    top[pending], left[pending] = ((heights - box_heights) // 2)[pending], ((widths - box_widths) // 2)[pending]
    return Boxes(top, left, box_heights, box_widths)


@dataclass(frozen=True, slots=True)
class ResizedCrop:
    """A random box of each image stretched over the whole image by bicubic interpolation."""

    smallest: float = 0.08

    def __call__(self, images: Pixels, draws: Draws) -> Pixels:
        """Return a random box of each image at the size of the image."""
        num, channels, height, width = images.shape
        boxes = choose_boxes(np.full(num, height), np.full(num, width), self.smallest, draws)
        across = _shifted(width, boxes.width, boxes.left)
        down = _shifted(height, boxes.height, boxes.top).transpose(0, 2, 1)
        wide: Weights = images.reshape(num, -1, width).astype(np.float32) @ across
        _round_to_bytes(wide)
        tall: Weights = down[:, None] @ wide.reshape(num, channels, height, width)
        _round_to_bytes(tall)
        return tall.astype(np.uint8)


def _middle_sizes(heights: NDArray[np.int64], widths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    narrow, wide = RATIO
    box_heights = np.minimum(heights, np.rint(widths / narrow).astype(np.int64))
    box_widths = np.minimum(widths, np.rint(heights * wide).astype(np.int64))
    return box_heights, box_widths


def _shifted(size: int, lengths: NDArray[np.int64], starts: NDArray[np.int64]) -> Weights:
    """Return for each image the matrix (in × out) that stretches `length` pixels from `start` over `size`."""
    windows = sliding_window_view(_stretches(size), size, axis=1)
    return windows.transpose(0, 1, 3, 2)[lengths - 1, size - starts]


@lru_cache(maxsize=4)
def _stretches(size: int) -> Weights:
    """Return for each length 1 … size the matrix that stretches it to `size`, with room to shift it along the input."""
    room = np.zeros((size, 2 * size, size), np.float32)
    for length in range(1, size + 1):
        room[length - 1, size : size + length] = _stretch(length, size).T
    return room


def _stretch(length: int, size: int) -> NDArray[np.float64]:
    """Return the bicubic weights (out × in), multiples of 1/WEIGHT_STEPS; each row sums to one."""
    centres = (np.arange(size) + 0.5) * length / size
    weights = cubic(np.arange(length) + 0.5 - centres[:, None])
    whole = np.rint(weights / weights.sum(axis=1, keepdims=True) * WEIGHT_STEPS)
    whole[np.arange(size), whole.argmax(axis=1)] += WEIGHT_STEPS - whole.sum(axis=1)
    return whole / WEIGHT_STEPS


def cubic(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weight of a pixel at this distance: the cubic kernel with slope -1/2, which Pillow uses."""
    near = np.abs(distance)
    inner = (1.5 * near - 2.5) * near * near + 1.0
    outer = ((-0.5 * near + 2.5) * near - 4.0) * near + 2.0
    return np.where(near < 1.0, inner, np.where(near < 2.0, outer, 0.0))


def _round_to_bytes(sums: Weights) -> None:
    """Round weighted sums of bytes to bytes, in place."""
    torch.from_numpy(sums).round_().clamp_(0, 255)
