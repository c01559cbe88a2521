"""Counter-based randomness for augmentation: each draw is a hash of (seed, purpose, epoch, sample id).

No batch or worker influences it. Distributions other than the uniform are tables of equally likely values: a look-up
gives the same bits at every position of an array, which vectorised logarithms and sines do not guarantee.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from math import exp, log
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from paceline.core.keys import mix, mix_each
from paceline.data.split import Ids

Pixels = NDArray[np.uint8]
"""Images as bytes, N×C×H×W: planes let every operation run along contiguous rows."""

Values = NDArray[np.float32]
"""Normalised images, N×C×H×W."""


TABLE_BITS = 12
TABLE_SIZE = 1 << TABLE_BITS
_QUANTILES = (np.arange(TABLE_SIZE) + 0.5) / TABLE_SIZE

Table = NDArray[np.float64]
Integers = NDArray[np.int64]


class Purpose(IntEnum):
    """The purpose of a draw. The values are part of every result: never change or reuse one."""

    CROP = 1
    FLIP = 2
    RESIZED_CROP = 3
    BRIGHTNESS = 4
    CONTRAST = 5
    SATURATION = 6
    RAND = 7
    ERASE = 8
    ERASE_NOISE = 9
    CUTOUT = 10
    MIX = 11
    USER = 12


@dataclass(frozen=True, kw_only=True, slots=True)
class Draws:
    """The random draws of some samples in one epoch."""

    seed: int
    epoch: int
    ids: Ids

    def of(self, indices: NDArray[np.intp]) -> "Draws":
        """Return the draws of the samples at these indices only."""
        return Draws(seed=self.seed, epoch=self.epoch, ids=self.ids[indices])

    def bits(self, purpose: Purpose, *detail: int) -> NDArray[np.uint64]:
        """Return 64 bits per sample; `detail` distinguishes draws with the same purpose."""
        return mix_each(mix(self.seed, purpose, self.epoch, *detail), self.ids)


def halves(bits: NDArray[np.uint64]) -> tuple[Integers, Integers]:
    """Return two 32-bit integers, the upper one first."""
    words = bits.astype("<u8", copy=False).view("<u4").reshape(-1, 2).T.astype(np.int64)
    return words[1], words[0]


def quarters(bits: NDArray[np.uint64]) -> tuple[Integers, Integers, Integers, Integers]:
    """Return four 16-bit integers, the upper ones first."""
    words = bits.astype("<u8", copy=False).view("<u2").reshape(-1, 4).T.astype(np.int64)
    return words[3], words[2], words[1], words[0]


def below(count: int | NDArray[np.int64], half: Integers) -> NDArray[np.int64]:
    """Turn 32-bit integers into integers in [0, count)."""
    return (half * count) >> 32


def fraction(half: Integers) -> NDArray[np.float64]:
    """Turn 32-bit integers into floats in [0, 1)."""
    return half.astype(np.float64) * 2.0**-32


def table_index(quarter: Integers) -> NDArray[np.int64]:
    """Turn 16-bit integers into indices of a table of TABLE_SIZE values."""
    return quarter >> (16 - TABLE_BITS)


@lru_cache
def normal_table() -> Table:
    """Return the quantiles of the standard normal distribution."""
    return np.array([NormalDist().inv_cdf(quantile) for quantile in _QUANTILES])


@lru_cache
def log_uniform_table(low: float, high: float) -> Table:
    """Return the quantiles of the log-uniform distribution between `low` and `high`."""
    return np.array([exp(log(low) + (log(high) - log(low)) * quantile) for quantile in _QUANTILES])


@lru_cache
def beta_table(alpha: float) -> Table:
    """Return the quantiles of the symmetric Beta(alpha, alpha) distribution.

    With x = t^(1/alpha) / 2 the density of the lower half becomes (1 - x)^(alpha - 1) dt: smooth, so the trapezoid rule
    integrates it well even where the density itself has a pole. The upper half mirrors the lower.
    """
    grid = np.linspace(0.0, 1.0, 1 << 14)
    density = (1.0 - 0.5 * grid ** (1.0 / alpha)) ** (alpha - 1.0)
    cumulative = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    half = (np.arange(TABLE_SIZE // 2) + 0.5) / (TABLE_SIZE // 2)
    lower = 0.5 * np.interp(half, cumulative / cumulative[-1], grid) ** (1.0 / alpha)
    return np.concatenate([lower, 1.0 - lower[::-1]])
