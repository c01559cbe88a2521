"""Images, and splits that augment them, for the tests of augmentation."""

import numpy as np
import torch

from paceline.data.augment.draws import Draws
from paceline.data.augment.pipeline import Augmentation
from paceline.data.augment.policy import parse_policy
from paceline.data.in_memory import InMemory

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
FILL = (125, 122, 115)
NUM = 60
SEED = 7


def pictures(channels=3, height=14, width=11, num=NUM):
    """Return images with flat areas, slopes and noise, one of them of a single colour."""
    rng = np.random.default_rng(3)
    slopes = np.linspace(0, 200, height)[:, None] * rng.random((num, channels, 1, 1)) + np.linspace(0, 55, width)
    noise = rng.integers(0, 256, (num, channels, height, width))
    which = rng.random((num, 1, 1, 1))
    images = np.where(which < 0.5, slopes, noise).astype(np.uint8)
    images[0] = 77
    return images


IMAGES = pictures()
LABELS = torch.arange(NUM) % 5


def split(policy, images=IMAGES, seed=SEED):
    """Return the images in memory with this policy."""
    channels = images.shape[1]
    augmentation = Augmentation(policy=parse_policy(policy), seed=seed)
    return InMemory(
        torch.from_numpy(images), LABELS, mean=MEAN[:channels], std=STD[:channels], augmentation=augmentation
    )


def plain(ids):
    """Return the normalised images without augmentation."""
    return split("none").fetch(ids, None).images.numpy()


def batched_bytes(policy, ids, epoch, images=IMAGES):
    """Return what the steps on bytes make of the images."""
    result = images[ids].copy()
    draws = Draws(seed=SEED, epoch=epoch, ids=ids)
    for step in parse_policy(policy).filled(FILL[: images.shape[1]]).pixel_steps:
        result = step(result, draws)
    return result
