"""RandAugment: a few operations per image out of fifteen, the strength of each scattered around one magnitude.

The settings and ranges are those of timm's `rand-m9-mstd0.5-inc1`. Samples that drew operations of one kind are
processed together, so a batch costs a handful of array operations instead of one chain per image.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from paceline.data.augment import blends, tables, warps
from paceline.data.augment.draws import TABLE_SIZE, Draws, Purpose, Table, normal_table
from paceline.data.augment.geometry import Pixels

DEEPEST = 10.0
"""The magnitude at which an operation reaches the end of its range."""
UNIFORM_STD = 100.0
"""A larger spread than this means: uniform between 0 and the magnitude."""


class Op(IntEnum):
    """The operations. Their numbers are part of every result: never change one."""

    AUTO_CONTRAST = 0
    EQUALIZE = 1
    INVERT = 2
    POSTERIZE = 3
    SOLARIZE = 4
    SOLARIZE_ADD = 5
    CONTRAST = 6
    BRIGHTNESS = 7
    SATURATION = 8
    SHARPNESS = 9
    SHEAR_X = 10
    SHEAR_Y = 11
    SHIFT_X = 12
    SHIFT_Y = 13
    ROTATE = 14


_WITHOUT_LEVEL = {
    Op.AUTO_CONTRAST: tables.auto_contrast,
    Op.EQUALIZE: tables.equalize,
    Op.INVERT: tables.invert,
}
_WITH_FACTOR = {Op.CONTRAST: tables.contrast, Op.BRIGHTNESS: tables.brightness}


@dataclass(frozen=True, slots=True)
class Choices:
    """What some samples drew in one layer: which operation, how strong (a place in the table of levels), which sign."""

    ops: NDArray[np.int64]
    places: NDArray[np.intp]
    signs: NDArray[np.float64]

    def of(self, where: NDArray) -> "Choices":
        """Return the choices of the samples there."""
        return Choices(self.ops[where], self.places[where], self.signs[where])


@dataclass(frozen=True, kw_only=True, slots=True)
class RandAugment:
    """`layers` operations per image, each applied with probability `chance` at about `magnitude` of 10."""

    magnitude: float = 10.0
    spread: float = 0.0
    increasing: bool = False
    layers: int = 2
    chance: float = 0.5
    ceiling: float = DEEPEST
    fill: tuple[int, ...] = (128,)
    """The colour of what a move brings in from outside: the mean of the data set."""

    def __call__(self, images: Pixels, draws: Draws) -> Pixels:
        """Return the images, each changed by its own operations."""
        result = images.copy()
        for layer in range(self.layers):
            active = np.flatnonzero(draws.uniform(Purpose.RAND, layer, 0) < self.chance)
            self._layer(result, active, self._choose(draws.of(active), layer))
        return result

    def _choose(self, draws: Draws, layer: int) -> Choices:
        return Choices(
            draws.below(len(Op), Purpose.RAND, layer, 1),
            draws.place(Purpose.RAND, layer, 2),
            (1 - 2 * draws.below(2, Purpose.RAND, layer, 3)).astype(np.float64),
        )

    def _layer(self, images: Pixels, active: NDArray[np.intp], choices: Choices) -> None:
        """Change the active images in place, one kind of operation at a time."""
        kinds = (
            (choices.ops <= Op.BRIGHTNESS, self._look_up),
            (choices.ops == Op.SATURATION, self._saturate),
            (choices.ops == Op.SHARPNESS, self._sharpen),
            ((choices.ops == Op.SHEAR_X) | (choices.ops == Op.SHIFT_X), self._slide),
            ((choices.ops == Op.SHEAR_Y) | (choices.ops == Op.SHIFT_Y), self._slide_upright),
            (choices.ops == Op.ROTATE, self._turn),
        )
        for mask, change in kinds:
            if mask.any():
                places = active[mask]
                images[places] = change(images[places], choices.of(mask))

    def _levels(self) -> Table:
        return _level_table(self.magnitude, self.spread, self.ceiling)

    def _look_up(self, images: Pixels, choices: Choices) -> Pixels:
        result = np.empty((*images.shape[:2], 256), np.uint8)
        for op in np.unique(choices.ops):
            mask = choices.ops == op
            result[mask] = self._table(Op(op), images[mask], choices.of(mask))
        return tables.apply_tables(images, result)

    def _table(self, op: Op, images: Pixels, choices: Choices) -> tables.Tables:
        if op in _WITHOUT_LEVEL:
            return _WITHOUT_LEVEL[op](images)
        if op in _WITH_FACTOR:
            return _WITH_FACTOR[op](images, self._factor(choices))
        level = self._levels()[choices.places]
        if op is Op.SOLARIZE_ADD:
            return tables.solarize_add(images, np.minimum(128, _whole(110 * level)))
        if op is Op.SOLARIZE:
            return tables.solarize(images, self._rising(256, level))
        return tables.posterize(images, np.maximum(1, self._rising(4, level)))  # without any bit all would be black

    def _saturate(self, images: Pixels, choices: Choices) -> Pixels:
        return blends.saturation(images, self._factor(choices))

    def _sharpen(self, images: Pixels, choices: Choices) -> Pixels:
        return blends.sharpness(images, self._factor(choices))

    def _slide(self, images: Pixels, choices: Choices) -> Pixels:
        """Shear or shift: a row's way grows downwards in a shear, and is the same for all rows in a shift."""
        height, width = images.shape[2:]
        amount = (self._levels()[choices.places] * choices.signs)[:, None]
        sheared = 0.3 * amount * (np.arange(height) + 0.5)
        shear = (choices.ops == Op.SHEAR_X) | (choices.ops == Op.SHEAR_Y)
        return warps.slide(images, np.where(shear[:, None], sheared, 0.45 * width * amount), self._fill(images))

    def _slide_upright(self, images: Pixels, choices: Choices) -> Pixels:
        lying = np.ascontiguousarray(images.swapaxes(2, 3))
        return self._slide(lying, choices).swapaxes(2, 3)

    def _turn(self, images: Pixels, choices: Choices) -> Pixels:
        cosine, sine = _angle_tables(self.magnitude, self.spread, self.ceiling)
        return warps.turn(images, cosine[choices.places], -choices.signs * sine[choices.places], self._fill(images))

    def _fill(self, images: Pixels) -> NDArray[np.uint8]:
        return np.resize(np.array(self.fill, np.uint8), images.shape[1])

    def _factor(self, choices: Choices) -> NDArray[np.float64]:
        """Return the strength of a blend: 1 changes nothing."""
        level = self._levels()[choices.places]
        if self.increasing:
            return np.maximum(0.1, 1.0 + 0.9 * level * choices.signs)
        return 1.8 * level + 0.1

    def _rising(self, span: int, level: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return a setting whose effect grows as it falls: turned round in the increasing set."""
        value = np.minimum(span, _whole(span * level))
        return span - value if self.increasing else value


@lru_cache
def _level_table(magnitude: float, spread: float, ceiling: float) -> Table:
    """Return the equally likely strengths, as parts of the full range."""
    if spread > UNIFORM_STD:
        scattered = magnitude * (np.arange(TABLE_SIZE) + 0.5) / TABLE_SIZE
    else:
        scattered = magnitude + spread * normal_table()
    return np.clip(scattered, 0.0, ceiling) / DEEPEST


@lru_cache
def _angle_tables(magnitude: float, spread: float, ceiling: float) -> tuple[Table, Table]:
    """Return cosine and sine of the equally likely angles, up to 30 degrees at full strength."""
    angle = np.radians(30.0 * _level_table(magnitude, spread, ceiling))
    return np.cos(angle), np.sin(angle)


def _whole(values: NDArray[np.float64]) -> NDArray[np.int64]:
    return values.astype(np.int64)
