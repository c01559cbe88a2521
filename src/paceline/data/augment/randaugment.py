"""RandAugment: a few of fifteen operations per image, each with a strength around one magnitude.

The settings and ranges are those of timm's `rand-m9-mstd0.5-inc1`. Samples that drew operations of one kind are
processed together, so a batch costs a handful of array operations instead of one chain per image.
"""

from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from paceline.data.augment import pillow_ops, warps
from paceline.data.augment.draws import TABLE_SIZE, Draws, Pixels, Purpose, Table, normal_table, quarters, table_index

DEEPEST = 10.0
"""The magnitude at which an operation reaches the end of its range."""
UNIFORM_STD = 100.0
"""A larger spread than this means: uniform between 0 and the magnitude."""


class Op(IntEnum):
    """The operations. Their values are part of every result: never change one."""

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


@dataclass(frozen=True, slots=True)
class Choices:
    """The draws of some samples in one layer: operation, strength (an index into the table of levels) and sign."""

    ops: NDArray[np.int64]
    level_indices: NDArray[np.intp]
    signs: NDArray[np.float64]

    def of(self, where: NDArray | slice) -> "Choices":
        """Return the choices of the samples at these indices."""
        return Choices(self.ops[where], self.level_indices[where], self.signs[where])

    def starts(self) -> list[int]:
        """Return the start of each operation in choices sorted by operation, and the end of the last one."""
        return np.searchsorted(self.ops, np.arange(len(Op) + 1)).tolist()


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
    """The colour of pixels from outside the image: the mean of the data set."""

    def __call__(self, images: Pixels, draws: Draws) -> Pixels:
        """Return the images, each changed by its own operations, in place."""
        for layer in range(self.layers):
            chance, op, level, side = quarters(draws.bits(Purpose.RAND, layer))
            active = np.flatnonzero(chance < self.chance * 2**16)
            choices = Choices((op * len(Op)) >> 16, table_index(level), np.where(side < 1 << 15, 1.0, -1.0))
            self._layer(images, active, choices.of(active))
        return images

    def _layer(self, images: Pixels, active: NDArray[np.intp], drawn: Choices) -> None:
        """Change the active images in place: sorted by operation, so that each kind is one slice of them."""
        order = np.argsort(drawn.ops, kind="stable")
        choices, indices = drawn.of(order), active[order]
        work = images[indices]
        starts = choices.starts()
        kinds = (
            (Op.AUTO_CONTRAST, Op.BRIGHTNESS, self._look_up),
            (Op.SATURATION, Op.SATURATION, self._saturate),
            (Op.SHARPNESS, Op.SHARPNESS, self._sharpen),
            (Op.SHEAR_X, Op.SHIFT_Y, self._slide),
            (Op.ROTATE, Op.ROTATE, self._turn),
        )
        for first, last, change in kinds:
            span = slice(starts[first], starts[last + 1])
            if span.start < span.stop:
                work[span] = change(work[span], choices.of(span))
        images[indices] = work

    def _levels(self) -> Table:
        return _level_table(self.magnitude, self.spread, self.ceiling)

    def _look_up(self, images: Pixels, choices: Choices) -> Pixels:
        """Apply the operations that are a table per plane, all in one look-up; the images are sorted by operation."""
        result = np.empty((*images.shape[:2], 256), np.uint8)
        starts = choices.starts()
        stretched, equalized, fixed, grey, blend = (
            slice(starts[first], starts[last + 1])
            for first, last in (
                (Op.AUTO_CONTRAST, Op.AUTO_CONTRAST),
                (Op.EQUALIZE, Op.EQUALIZE),
                (Op.INVERT, Op.SOLARIZE_ADD),
                (Op.CONTRAST, Op.CONTRAST),
                (Op.CONTRAST, Op.BRIGHTNESS),
            )
        )
        result[stretched] = pillow_ops.auto_contrast(images[stretched])
        result[equalized] = pillow_ops.equalize(images[equalized])
        result[fixed] = self._fixed_tables(choices.of(fixed))[:, None]
        start = np.zeros(blend.stop - blend.start, np.float32)
        start[: grey.stop - grey.start] = pillow_ops.mean_grey(images[grey])
        result[blend] = pillow_ops.blend_tables(start, self._factor(choices.of(blend)))[:, None]
        return pillow_ops.apply_tables(images, result)

    def _fixed_tables(self, choices: Choices) -> NDArray[np.uint8]:
        starts, rows = pillow_ops.fixed_tables()
        level = self._levels()[choices.level_indices]
        settings = {
            Op.INVERT: starts["invert"] + np.zeros_like(choices.ops),
            # Without any bit left the image would be black.
            Op.POSTERIZE: starts["posterize"] + np.maximum(1, self._rising(4, level)),
            Op.SOLARIZE: starts["solarize"] + self._rising(256, level),
            Op.SOLARIZE_ADD: starts["solarize_add"] + np.minimum(128, _whole(110 * level)),
        }
        return rows[np.choose(choices.ops - Op.INVERT, list(settings.values()))]

    def _saturate(self, images: Pixels, choices: Choices) -> Pixels:
        return pillow_ops.saturation(images, self._factor(choices))

    def _sharpen(self, images: Pixels, choices: Choices) -> Pixels:
        return pillow_ops.sharpness(images, self._factor(choices))

    def _slide(self, images: Pixels, choices: Choices) -> Pixels:
        """Shear or shift; images that move along y are transposed before and after."""
        upright = (choices.ops == Op.SHEAR_Y) | (choices.ops == Op.SHIFT_Y)
        if images.shape[2] != images.shape[3]:
            return self._slide_oblong(images, choices, upright)
        lying = images.copy()
        lying[upright] = images[upright].swapaxes(2, 3)
        moved = self._slide_rows(lying, choices)
        moved[upright] = moved[upright].swapaxes(2, 3)
        return moved

    def _slide_oblong(self, images: Pixels, choices: Choices, upright: NDArray[np.bool_]) -> Pixels:
        result = np.empty_like(images)
        result[~upright] = self._slide_rows(images[~upright], choices.of(~upright))
        lying = np.ascontiguousarray(images[upright].swapaxes(2, 3))
        result[upright] = self._slide_rows(lying, choices.of(upright)).swapaxes(2, 3)
        return result

    def _slide_rows(self, images: Pixels, choices: Choices) -> Pixels:
        """Move rows sideways: in a shear in proportion to their height, in a shift all by the same amount."""
        height, width = images.shape[2:]
        amount = (self._levels()[choices.level_indices] * choices.signs)[:, None]
        shear = (choices.ops == Op.SHEAR_X) | (choices.ops == Op.SHEAR_Y)
        shift = np.where(shear[:, None], 0.3 * amount * (np.arange(height) + 0.5), 0.45 * width * amount)
        return warps.slide(images, shift, self._fill(images))

    def _turn(self, images: Pixels, choices: Choices) -> Pixels:
        cosine, sine = _angle_tables(self.magnitude, self.spread, self.ceiling)
        return warps.turn(
            images, cosine[choices.level_indices], -choices.signs * sine[choices.level_indices], self._fill(images)
        )

    def _fill(self, images: Pixels) -> NDArray[np.uint8]:
        return np.resize(np.array(self.fill, np.uint8), images.shape[1])

    def _factor(self, choices: Choices) -> NDArray[np.float64]:
        """Return the strength of a blend: 1 changes nothing."""
        level = self._levels()[choices.level_indices]
        if self.increasing:
            return np.maximum(0.1, 1.0 + 0.9 * level * choices.signs)
        return 1.8 * level + 0.1

    def _rising(self, span: int, level: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return a setting whose effect grows as it falls: reversed in the increasing set."""
        value = np.minimum(span, _whole(span * level))
        return span - value if self.increasing else value


@lru_cache
def _level_table(magnitude: float, spread: float, ceiling: float) -> Table:
    """Return the equally likely strengths, as fractions of the full range."""
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
