"""The dice of augmentation: every throw is a hash of (seed, purpose, epoch, sample id), so no batch or worker owns it.

Distributions other than the uniform are tables of equally likely values. A look-up gives the same bits wherever in an
array a sample stands, which vectorised logarithms and sines do not promise.
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

TABLE_BITS = 12
TABLE_SIZE = 1 << TABLE_BITS
_QUANTILES = (np.arange(TABLE_SIZE) + 0.5) / TABLE_SIZE

Table = NDArray[np.float64]
Parts = NDArray[np.int64]


class Purpose(IntEnum):
    """What a throw decides. The numbers are part of every result: never change or reuse one."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class Draws:
    """The throws of some samples in one epoch."""

    seed: int
    epoch: int
    ids: Ids

    def of(self, places: NDArray[np.intp]) -> "Draws":
        """Return the throws of the samples at these places only."""
        return Draws(seed=self.seed, epoch=self.epoch, ids=self.ids[places])

    def bits(self, purpose: Purpose, *detail: int) -> NDArray[np.uint64]:
        """Return 64 bits per sample; `detail` tells apart throws with one purpose."""
        return mix_each(mix(self.seed, purpose, self.epoch, *detail), self.ids)


def halves(bits: NDArray[np.uint64]) -> tuple[Parts, Parts]:
    """Return two numbers of 32 bits, the upper one first."""
    parts = bits.astype("<u8", copy=False).view("<u4").reshape(-1, 2).T.astype(np.int64)
    return parts[1], parts[0]


def quarters(bits: NDArray[np.uint64]) -> tuple[Parts, Parts, Parts, Parts]:
    """Return four numbers of 16 bits, the upper ones first."""
    parts = bits.astype("<u8", copy=False).view("<u2").reshape(-1, 4).T.astype(np.int64)
    return parts[3], parts[2], parts[1], parts[0]


def below(count: int | NDArray[np.int64], half: Parts) -> NDArray[np.int64]:
    """Turn numbers of 32 bits into whole numbers in [0, count)."""
    return (half * count) >> 32


def fraction(half: Parts) -> NDArray[np.float64]:
    """Turn numbers of 32 bits into numbers in [0, 1)."""
    return half.astype(np.float64) * 2.0**-32


def table_place(quarter: Parts) -> NDArray[np.int64]:
    """Turn numbers of 16 bits into places of a table of TABLE_SIZE values."""
    return quarter >> (16 - TABLE_BITS)


@lru_cache
def normal_table() -> Table:
    """Return the quantiles of the standard normal distribution."""
    return np.array([NormalDist().inv_cdf(quantile) for quantile in _QUANTILES])


@lru_cache
def log_uniform_table(low: float, high: float) -> Table:
    """Return the quantiles of a number whose logarithm is uniform between those of `low` and `high`."""
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
