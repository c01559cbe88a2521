"""Colour operations equal to Pillow's ImageOps and ImageEnhance to the bit.

Operations on single bytes become a table of 256 values per plane; all tables are applied in one look-up.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from paceline.data.augment.draws import Pixels

Tables = NDArray[np.uint8]
"""One table of 256 bytes per image and plane: N×C×256."""

BYTES = np.arange(256)
GREY = (19595, 38470, 7471)
"""Weights of red, green and blue in the luma of ITU-R 601-2, in units of 2**-16."""


def apply_tables(images: Pixels, tables: Tables) -> Pixels:
    """Return the images with every byte replaced by the entry of its plane's table; one table may serve all planes."""
    num = len(images) * tables.shape[1]
    indices = images.reshape(num, images.size // max(1, num)).astype(np.intp)
    indices += np.arange(0, num * 256, 256)[:, None]
    return tables.reshape(-1).take(indices).reshape(images.shape)


def auto_contrast(images: Pixels) -> Tables:
    """Stretch each plane so that its darkest byte becomes 0 and its brightest 255."""
    low = images.min(axis=(2, 3)).astype(np.float64)[..., None]
    span = images.max(axis=(2, 3))[..., None] - low
    scale = 255.0 / np.where(span > 0, span, 1.0)
    stretched = np.trunc(BYTES * scale + -low * scale)
    return _bytes(np.where(span > 0, stretched, BYTES))


def equalize(images: Pixels) -> Tables:
    """Equalise the histogram of each plane."""
    num, channels, height, width = images.shape
    planes = num * channels
    indices = images.reshape(planes, height * width).astype(np.intp)
    last = indices.max(axis=1)
    indices += np.arange(0, planes * 256, 256)[:, None]
    counts = np.bincount(indices.reshape(-1), minlength=planes * 256).reshape(planes, 256)
    step = (indices.shape[1] - counts[np.arange(planes), last]) // 255
    before = np.cumsum(counts, axis=1) - counts
    levelled = (before + (step // 2)[:, None]) // np.maximum(step, 1)[:, None]
    return _bytes(np.where(step[:, None] > 0, levelled, BYTES)).reshape(num, channels, 256)


def blend_tables(start: NDArray[np.float32], factor: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return a table per image that moves bytes away from its start value: black gives brightness."""
    return blended(start[:, None], BYTES, factor[:, None]).astype(np.uint8)


def mean_grey(images: Pixels) -> NDArray[np.float32]:
    """Return the mean luma of each image in whole bytes: the start from which contrast moves away."""
    luma = grey(images)
    area = luma.shape[1] * luma.shape[2]
    return np.floor(luma.sum(axis=(1, 2), dtype=np.int64) / area + 0.5).astype(np.float32)


@lru_cache
def fixed_tables() -> tuple[dict[str, int], NDArray[np.uint8]]:
    """Return all tables of the operations with few settings, and the first row of each operation.

    invert; posterize (bits kept); solarize (threshold); solarize_add (addend).
    """
    banks = {
        "invert": 255 - BYTES[None],
        "posterize": BYTES & (0xFF << (8 - np.arange(9)))[:, None],
        "solarize": np.where(np.arange(257)[:, None] > BYTES, BYTES, 255 - BYTES),
        "solarize_add": np.where(BYTES < 128, BYTES + np.arange(129)[:, None], BYTES),
    }
    starts = np.cumsum([0, *map(len, banks.values())])
    rows = _bytes(np.concatenate(list(banks.values())))
    return dict(zip(banks, starts.tolist(), strict=False)), rows


def grey(images: Pixels) -> Pixels:
    """Return the luma of each image, N×H×W; an image of one plane is its own luma."""
    if images.shape[1] != len(GREY):
        return images[:, 0]
    red, green, blue = (images[:, plane].astype(np.uint32) * weight for plane, weight in enumerate(GREY))
    return ((red + green + blue + 0x8000) >> 16).astype(np.uint8)


def blended(start: NDArray, end: NDArray, factor: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return start + factor · (end − start) in bytes, cut off as Pillow does; a factor above 1 goes beyond `end`."""
    origin = start.astype(np.float32)
    moved = (end.astype(np.float32) - origin) * factor.astype(np.float32)
    moved += origin
    return np.clip(moved, 0, 255, out=moved)


def _bytes(table: NDArray) -> NDArray[np.uint8]:
    return np.clip(table, 0, 255).astype(np.uint8)


def saturation(images: Pixels, factor: NDArray[np.float64]) -> Pixels:
    """Move away from the grey image by the factor."""
    return blended(grey(images)[:, None], images, factor[:, None, None, None]).astype(np.uint8)


def sharpness(images: Pixels, factor: NDArray[np.float64]) -> Pixels:
    """Move away from the smoothed image by the factor."""
    return blended(smooth(images), images, factor[:, None, None, None]).astype(np.uint8)


def smooth(images: Pixels) -> Pixels:
    """Return each pixel averaged with its eight neighbours, itself counted five times; the outermost pixels stay."""
    wide = images.astype(np.uint16)
    if min(images.shape[2:]) < 3:
        return images
    rows = wide[..., :-2] + wide[..., 1:-1] + wide[..., 2:]
    total = rows[..., :-2, :] + rows[..., 1:-1, :] + rows[..., 2:, :] + 4 * wide[..., 1:-1, 1:-1]
    result = images.copy()
    result[..., 1:-1, 1:-1] = (2 * total + 13) // 26
    return result
