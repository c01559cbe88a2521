"""The drawn shapes: targets that fit the images."""

import hashlib

import numpy as np
import torch

from paceline.core.config import Config
from paceline.data.catalog import open_data

SOME = np.arange(50)


def test_a_mask_names_the_class_of_every_pixel():
    data = open_data(Config(data="shapes"))
    images, masks = data.train.fetch(SOME, 0)
    assert (images.shape, masks.shape, masks.dtype) == ((50, 1, 32, 32), (50, 32, 32), torch.uint8)
    assert set(masks.unique().tolist()) == {0, 1, 2, 3, 255}
    assert images[:, 0][masks == 0].mean().abs() < 0.02
    assert images[:, 0][(masks > 0) & (masks < 255)].mean() > 0.5
    assert (data.task, data.facts["num_classes"], data.facts["image_shape"]) == ("segmentation", 4, (1, 32, 32))


def test_labels_and_centers_belong_to_the_same_images():
    shapes, labels, centers = (open_data(Config(data=name)) for name in ("shapes", "shape-labels", "shape-centers"))
    masks = shapes.test.fetch(SOME, None)[1]
    present, places = labels.test.fetch(SOME, None)[1], centers.test.fetch(SOME, None)[1]
    for mask, row in zip(masks, present, strict=True):
        assert set(mask.unique().tolist()) - {0, 255} <= {index + 1 for index in range(3) if row[index]}
    assert (labels.task, labels.facts["num_outputs"]) == ("multi-label", 3)
    assert (centers.task, centers.facts["num_outputs"]) == ("regression", 2)
    assert places.abs().max() < 1


def test_the_images_are_the_same_on_every_machine():
    masks = open_data(Config(data="shapes")).test.fetch(SOME, None)[1]
    assert hashlib.sha256(masks.numpy().tobytes()).hexdigest()[:12] == "d8bd34a3fa72"
