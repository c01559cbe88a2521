"""Bicubic shear, shift and rotation of an image; pixels from outside have one colour.

Every output pixel is a weighted sum of the pixels around its source position, with the cubic kernel of slope -1 that
Pillow's transforms use (its resizing has -1/2). Each sum is computed separately, in a fixed order, so its bits do not
depend on the batch.
"""

from functools import lru_cache

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch.nn.functional import embedding_bag

from paceline.data.augment.draws import Pixels

_TAPS = 4
_EDGE = 2
"""How far the taps around a position inside the image can reach outside."""
_STEP_BITS = 6
_STEPS = 1 << _STEP_BITS


def slide(images: Pixels, shift: NDArray[np.float64], fill: NDArray[np.uint8]) -> Pixels:
    """Move rows sideways: row y of each image takes its pixels from `shift[image, y]` further right."""
    num, channels, height, width = images.shape
    whole = np.floor(shift)
    weights = torch.from_numpy(_weights(shift - whole)[:, None, :, None, :])
    padded = np.empty((num, channels, height, 3 * width + 2 * _EDGE), np.uint8)
    inner = slice(width + _EDGE, 2 * width + _EDGE)
    padded[..., : inner.start], padded[..., inner.stop :] = images[..., :1], images[..., -1:]
    padded[..., inner] = images
    first = np.clip(whole, -width - 1, width).astype(np.int64) + (inner.start - 1)
    windows = sliding_window_view(padded, width + _TAPS - 1, axis=3)
    rows = windows.transpose(0, 2, 3, 1, 4)[np.arange(num)[:, None], np.arange(height), first]
    taps = torch.from_numpy(np.ascontiguousarray(rows.transpose(0, 2, 1, 3), np.float32))
    sums = taps[..., :width] * weights[..., 0]
    for tap in range(1, _TAPS):
        sums.addcmul_(taps[..., tap : tap + width], weights[..., tap])
    pixels = _bytes(sums.numpy())
    left, right = np.ceil(-0.5 - shift), np.ceil(width - 0.5 - shift)
    column = np.arange(width, dtype=np.float64)
    outside = (column < left[..., None]) | (column >= right[..., None])
    np.copyto(pixels, fill[:, None, None], where=outside[:, None])
    return pixels


def turn(images: Pixels, cosine: NDArray[np.float64], sine: NDArray[np.float64], fill: NDArray[np.uint8]) -> Pixels:
    """Rotate each image about its middle; a pixel comes from the nearest multiple of 1/64 pixel."""
    num, channels, height, width = images.shape
    y, x = (np.arange(size) + 0.5 - size / 2 for size in (height, width))
    cosine, sine = cosine[:, None, None], sine[:, None, None]
    from_x = cosine * x + sine * y[:, None] + width / 2
    from_y = cosine * y[:, None] - sine * x + height / 2
    outside = (from_x < 0) | (from_x >= width) | (from_y < 0) | (from_y >= height)
    pixels = _bytes(_bicubic(_widened(images), _fine(from_y, height), _fine(from_x, width)))
    pixels[outside.reshape(-1)] = fill
    return np.ascontiguousarray(pixels.reshape(num, -1, channels).transpose(0, 2, 1)).reshape(images.shape)


def _fine(position: NDArray[np.float64], size: int) -> NDArray[np.int64]:
    """Return the distance of a position from the centre of the first widened pixel, in steps of 1/64 pixel."""
    return np.rint((np.clip(position, 0, size) + (_EDGE - 0.5)) * _STEPS).astype(np.int64)


def _widened(images: Pixels) -> NDArray[np.float32]:
    """Return the images with their outermost pixels repeated around them, pixel by pixel: N×H×W×C."""
    rows, columns = (np.clip(np.arange(-_EDGE, size + _EDGE), 0, size - 1) for size in images.shape[2:])
    wide = images.take(rows, axis=2).take(columns, axis=3)
    return np.ascontiguousarray(wide.transpose(0, 2, 3, 1), np.float32)


def _bicubic(wide: NDArray[np.float32], y: NDArray[np.int64], x: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return the colour at each position (N×H×W) of the widened images, as rows of C values.

    The sixteen taps of a position are one bag, whose weights are precomputed for every step of 1/64 pixel.
    """
    num, height, width, channels = wide.shape
    corner = ((y >> _STEP_BITS) - 1) * width + ((x >> _STEP_BITS) - 1)
    corner += np.arange(0, num * height * width, height * width)[:, None, None]
    near = np.arange(_TAPS)
    taps = torch.from_numpy(corner).view(-1, 1) + torch.from_numpy((near[:, None] * width + near).reshape(-1))
    step = ((y & (_STEPS - 1)) << _STEP_BITS) + (x & (_STEPS - 1))
    weights = torch.from_numpy(_plane_weights().take(step.reshape(-1), axis=0))
    pixels = torch.from_numpy(wide.reshape(-1, channels))
    return embedding_bag(taps, pixels, mode="sum", per_sample_weights=weights).numpy()


@lru_cache
def _plane_weights() -> NDArray[np.float32]:
    """Return the weights of the sixteen pixels around a position, for each step down and each step right."""
    line = _weights(np.arange(_STEPS) / _STEPS)
    return np.einsum("yi,xj->yxij", line, line).reshape(_STEPS * _STEPS, _TAPS * _TAPS)


def _weights(past: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the weights of the four pixels around a position that lies `past` the second of them."""
    near = past.astype(np.float32)
    far = 1 - near
    outer = -near * far
    weights = np.empty((*past.shape, _TAPS), np.float32)
    weights[..., 0], weights[..., 3] = outer * far, outer * near
    weights[..., 1] = (near - 2) * near * near + 1
    weights[..., 2] = (far - 2) * far * far + 1
    return weights


def _bytes(sums: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Round to the nearest byte; changes `sums`."""
    sums += np.float32(0.5)
    return np.clip(sums, 0, 255, out=sums).astype(np.uint8)
