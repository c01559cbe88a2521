"""The order of the images: an argsort of hashes, so that any step of any epoch can be entered directly."""

import numpy as np

from paceline.core.keys import mix, mix_each
from paceline.data.split import Ids

HELD_OUT = 0x48E1D007
SCORED = 0x5C02ED


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


def spread_ids(*, images: int, number: int) -> Ids:
    """Return `number` of the ids in rising order: one of each of as many equal stretches, chosen by its hash.

    Neither sorted nor alternating classes are favoured, and the choice does not depend on the seed.
    """
    ends = np.arange(number + 1) * images // number
    lengths = np.diff(ends).astype(np.uint64)
    return ends[:-1] + (mix_each(mix(SCORED), np.arange(number)) % lengths).astype(np.int64)
