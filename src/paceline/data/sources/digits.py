"""The embedded set: 1,797 hand-written digits of 8×8 pixels, so that the first command needs no download.

Source: E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998,
https://doi.org/10.24432/C50P49, licensed CC BY 4.0. The images are the repository's 1,797-image subset, pixels 0…16.
"""

from importlib.resources import files

import numpy as np
import torch

from paceline.data.augment.pipeline import Augmentation
from paceline.data.in_memory import InMemory
from paceline.data.order import hashed_order
from paceline.data.split import DataSet

NUM_TEST = 360
BRIGHTEST = 16
MEAN, STD = (0.3053,), (0.3761,)


def open_digits(augmentation: Augmentation | None = None) -> DataSet:
    """Read the embedded digits; which 360 of them are for testing never changes."""
    with files("paceline.data.sources").joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        pixels = (arrays["images"].astype(np.float32) * (255 / BRIGHTEST)).round().astype(np.uint8)
        labels = arrays["labels"].astype(np.int64)
    order = hashed_order(key=0, num_samples=len(labels))
    train_ids, test_ids = np.sort(order[NUM_TEST:]), np.sort(order[:NUM_TEST])
    train = _in_memory(pixels[train_ids], labels[train_ids], augmentation)
    test = _in_memory(pixels[test_ids], labels[test_ids], None)
    return DataSet(train=train, test=test, classes=tuple("0123456789"), image_shape=(1, 8, 8))


def _in_memory(pixels: np.ndarray, labels: np.ndarray, augmentation: Augmentation | None) -> InMemory:
    images = torch.from_numpy(pixels).unsqueeze(1)
    return InMemory(images, torch.from_numpy(labels), mean=MEAN, std=STD, augmentation=augmentation)
