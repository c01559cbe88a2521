"""Drawn shapes: noisy images of circles, squares and triangles, for segmentation, multi-label and regression."""

from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.data.split import DataSet, Ids

CLASSES = ("background", "circle", "square", "triangle")
SIZE = 32
NUM_TRAIN, NUM_TEST = 1500, 300
SEED = 20240229
IGNORED = 255
"""Pixels at the edge of a shape, which count for no class."""
NOISE = 0.25

Floats = NDArray[np.float64]


class Tuples:
    """A split of tensors: a batch is some rows of each."""

    def __init__(self, *tensors: Tensor) -> None:
        self.held = tensors

    def __len__(self) -> int:
        return len(self.held[0])

    def fetch(self, ids: Ids, epoch: int | None) -> tuple[Tensor, ...]:  # every epoch has the same samples
        """Return these samples."""
        rows = torch.from_numpy(ids)
        return tuple(tensor[rows] for tensor in self.held)


def open_shapes() -> DataSet:
    """Return images (1×32×32) and masks of up to three shapes each, for segmentation."""
    images, masks, _, _ = _drawn()
    return _data_set(images, masks, task="segmentation", classes=CLASSES)


def open_shape_labels() -> DataSet:
    """Return images with which of the shapes are in them, for multi-label classification."""
    images, _, present, _ = _drawn()
    return _data_set(images, present, task="multi-label", num_outputs=len(CLASSES) - 1)


def open_shape_centers() -> DataSet:
    """Return images with the centre of mass of their shapes, from -1 to 1 in each direction, for regression."""
    images, _, _, centers = _drawn()
    return _data_set(images, centers, task="regression", num_outputs=2)


def _data_set(
    images: Tensor, targets: Tensor, *, task: str, classes: tuple[str, ...] = (), num_outputs: int | None = None
) -> DataSet:
    train, test = slice(0, NUM_TRAIN), slice(NUM_TRAIN, None)
    return DataSet(
        train=Tuples(images[train], targets[train]),
        test=Tuples(images[test], targets[test]),
        task=task,
        classes=classes,
        image_shape=(1, SIZE, SIZE),
        named_facts={} if num_outputs is None else {"num_outputs": num_outputs},
    )


@cache
def _drawn() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return images, masks, which shapes are there, and the centre of all shapes; the same on every machine."""
    number = NUM_TRAIN + NUM_TEST
    draws = np.random.Generator(np.random.PCG64(SEED))
    rows, columns = np.mgrid[0:SIZE, 0:SIZE]
    images, masks = np.zeros((number, SIZE, SIZE)), np.zeros((number, SIZE, SIZE), np.uint8)
    present = draws.random((number, len(CLASSES) - 1)) < 0.5
    present[~present.any(axis=1), 0] = True  # no image is empty
    for index, distance in enumerate(DISTANCES):
        place, radius, level = (draws.random((number, *shape)) for shape in ((2,), (), ()))
        x, y = (8 + place[:, axis, None, None] * (SIZE - 16) for axis in (0, 1))
        away = distance(columns - x, rows - y) - (4 + 3 * radius[:, None, None])
        away[~present[:, index]] = np.inf
        images = np.where(away < 0, (0.5 + 0.5 * level)[:, None, None], images)
        masks = np.where(np.abs(away) <= 0.5, IGNORED, np.where(away < 0, index + 1, masks)).astype(np.uint8)
    inside = images > 0
    mass = inside.sum(axis=(1, 2))
    centers = [(inside * axis).sum(axis=(1, 2)) / mass / (SIZE - 1) * 2 - 1 for axis in (columns, rows)]
    noisy = images + NOISE * draws.standard_normal(images.shape)
    return (
        torch.from_numpy(noisy).float()[:, None],
        torch.from_numpy(masks),
        torch.from_numpy(present).float(),
        torch.from_numpy(np.stack(centers, axis=1)).float(),
    )


def _circle(x: Floats, y: Floats) -> Floats:
    return np.sqrt(x**2 + y**2)


def _square(x: Floats, y: Floats) -> Floats:
    return np.maximum(np.abs(x), np.abs(y))


def _triangle(x: Floats, y: Floats) -> Floats:
    return np.maximum(np.sqrt(3) / 2 * np.abs(x) - y / 2, y)


DISTANCES: tuple[Callable[[Floats, Floats], Floats], ...] = (_circle, _square, _triangle)
"""How far a pixel lies from the centre of a shape, in units in which its edge is at the radius."""
