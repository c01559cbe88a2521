"""The order of the images: an argsort of hashes, so that any step of any epoch can be entered directly."""

import numpy as np

from paceline.core.keys import mix, mix_each
from paceline.data.split import Ids

HELD_OUT = 0x48E1D007


def hashed_order(*, key: int, images: int) -> Ids:
    """Return the numbers 0 … images-1 in an order that depends on the key alone."""
    return np.argsort(mix_each(key, np.arange(images)), kind="stable")


def epoch_order(*, seed: int, epoch: int, images: int) -> Ids:
    """Return the order in which an epoch takes the images: the same for every rank and world size."""
    return hashed_order(key=mix(seed, epoch), images=images)


def held_out(*, images: int, share: float) -> tuple[Ids, Ids]:
    """Return the ids to train on and the ids held out.

    The choice does not depend on the seed, so runs with different seeds are validated on the same images.
    """
    num_held = round(share * images)
    order = hashed_order(key=mix(HELD_OUT), images=images)
    return np.sort(order[num_held:]), np.sort(order[:num_held])
