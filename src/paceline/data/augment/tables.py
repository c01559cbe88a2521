"""Colour operations that look at one byte at a time: each becomes a table of 256 values per plane, all applied at once.

Results equal those of Pillow's ImageOps and ImageEnhance to the bit.
"""

import numpy as np
from numpy.typing import NDArray

from paceline.data.augment.geometry import Pixels

Tables = NDArray[np.uint8]
"""One table of 256 bytes per image and plane: N×C×256."""

BYTES = np.arange(256)
GREY = (19595, 38470, 7471)
"""Weights of red, green and blue in the luma of ITU-R 601-2, in units of 2**-16."""


def apply_tables(images: Pixels, tables: Tables) -> Pixels:
    """Return the images with every byte replaced by the entry of its plane's table."""
    num, channels = images.shape[:2]
    places = images.reshape(num * channels, -1).astype(np.intp)
    places += np.arange(0, num * channels * 256, 256)[:, None]
    return tables.reshape(-1).take(places).reshape(images.shape)


def auto_contrast(images: Pixels) -> Tables:
    """Stretch each plane so that its darkest byte becomes 0 and its brightest 255."""
    low = images.min(axis=(2, 3)).astype(np.float64)[..., None]
    span = images.max(axis=(2, 3))[..., None] - low
    scale = 255.0 / np.where(span > 0, span, 1.0)
    stretched = np.trunc(BYTES * scale + -low * scale)
    return _bytes(np.where(span > 0, stretched, BYTES))


def equalize(images: Pixels) -> Tables:
    """Spread each plane's bytes so that every brightness is about equally common."""
    num, channels = images.shape[:2]
    planes = num * channels
    places = images.reshape(planes, -1).astype(np.intp)
    last = places.max(axis=1)
    places += np.arange(0, planes * 256, 256)[:, None]
    counts = np.bincount(places.reshape(-1), minlength=planes * 256).reshape(planes, 256)
    step = (places.shape[1] - counts[np.arange(planes), last]) // 255
    before = np.cumsum(counts, axis=1) - counts
    spread = (before + (step // 2)[:, None]) // np.maximum(step, 1)[:, None]
    return _bytes(np.where(step[:, None] > 0, spread, BYTES)).reshape(num, channels, 256)


def invert(images: Pixels) -> Tables:
    """Turn dark into bright."""
    return _every_plane(np.broadcast_to(255 - BYTES, (len(images), 256)), images)


def posterize(images: Pixels, bits: NDArray[np.int64]) -> Tables:
    """Keep only the upper `bits` bits of each byte."""
    mask = (0xFF << (8 - bits)) & 0xFF
    return _every_plane(BYTES & mask[:, None], images)


def solarize(images: Pixels, threshold: NDArray[np.int64]) -> Tables:
    """Invert every byte from the threshold on."""
    return _every_plane(np.where(threshold[:, None] > BYTES, BYTES, 255 - BYTES), images)


def solarize_add(images: Pixels, addend: NDArray[np.int64]) -> Tables:
    """Brighten the darker half of the scale."""
    return _every_plane(np.where(BYTES < 128, BYTES + addend[:, None], BYTES), images)


def brightness(images: Pixels, factor: NDArray[np.float64]) -> Tables:
    """Move away from black by the factor."""
    return _every_plane(blended(np.zeros(1, np.float32), BYTES, factor[:, None]), images)


def contrast(images: Pixels, factor: NDArray[np.float64]) -> Tables:
    """Move away from the image's mean grey by the factor."""
    luma = grey(images).reshape(len(images), -1)
    mean = np.floor(luma.sum(axis=1, dtype=np.int64) / luma.shape[1] + 0.5).astype(np.float32)
    return _every_plane(blended(mean[:, None], BYTES, factor[:, None]), images)


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


def _every_plane(table: NDArray, images: Pixels) -> Tables:
    """Repeat one table per image for all of its planes."""
    return np.repeat(_bytes(table)[:, None], images.shape[1], axis=1)


def _bytes(table: NDArray) -> NDArray[np.uint8]:
    return np.clip(table, 0, 255).astype(np.uint8)
