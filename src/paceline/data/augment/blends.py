"""Colour operations that need neighbours or other planes: saturation and sharpness, equal to Pillow's to the bit."""

import numpy as np
from numpy.typing import NDArray

from paceline.data.augment.geometry import Pixels
from paceline.data.augment.tables import blended, grey


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
