"""Colour jitter: brightness, contrast and saturation, each moved by a random factor around 1."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.data.augment import pillow_ops
from paceline.data.augment.draws import Draws, Pixels, Purpose, fraction, halves


@dataclass(frozen=True, slots=True)
class Brightness:
    """Brightness times a factor in [1 − strength, 1 + strength]."""

    strength: float

    def __call__(self, images: Pixels, draws: Draws) -> Pixels:
        """Return the images, darker or brighter."""
        factor = _factor(self.strength, draws, Purpose.BRIGHTNESS)
        black = np.zeros(len(images), np.float32)
        return pillow_ops.apply_tables(images, pillow_ops.blend_tables(black, factor)[:, None])


@dataclass(frozen=True, slots=True)
class Contrast:
    """Contrast times a factor in [1 − strength, 1 + strength]."""

    strength: float

    def __call__(self, images: Pixels, draws: Draws) -> Pixels:
        """Return the images, flatter or harder."""
        factor = _factor(self.strength, draws, Purpose.CONTRAST)
        return pillow_ops.apply_tables(images, pillow_ops.blend_tables(pillow_ops.mean_grey(images), factor)[:, None])


@dataclass(frozen=True, slots=True)
class Saturation:
    """Saturation times a factor in [1 − strength, 1 + strength]."""

    strength: float

    def __call__(self, images: Pixels, draws: Draws) -> Pixels:
        """Return the images, paler or more colourful."""
        return pillow_ops.saturation(images, _factor(self.strength, draws, Purpose.SATURATION))


def _factor(strength: float, draws: Draws, purpose: Purpose) -> NDArray[np.float64]:
    lowest = max(0.0, 1.0 - strength)
    half, _ = halves(draws.bits(purpose))
    return lowest + (1.0 + strength - lowest) * fraction(half)
