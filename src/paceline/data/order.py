"""The order of samples: an argsort of hashes, so that any step of any epoch can be entered directly."""

import numpy as np

from paceline.core.keys import mix, mix_each
from paceline.data.split import Ids

HELD_OUT = 0x48E1D007
SCORED = 0x5C02ED


def hashed_order(*, key: int, num_samples: int) -> Ids:
    """Return the ids 0 … num_samples-1 in an order that depends on the key alone."""
    return np.argsort(mix_each(key, np.arange(num_samples)), kind="stable")


def epoch_order(*, seed: int, epoch: int, num_samples: int) -> Ids:
    """Return the order of the samples in an epoch: the same for every rank and world size."""
    return hashed_order(key=mix(seed, epoch), num_samples=num_samples)


def held_out(*, num_samples: int, fraction: float) -> tuple[Ids, Ids]:
    """Return the ids to train on and the ids held out.

    The choice does not depend on the seed, so runs with different seeds are validated on the same samples.
    """
    num_held = round(fraction * num_samples)
    order = hashed_order(key=mix(HELD_OUT), num_samples=num_samples)
    return np.sort(order[num_held:]), np.sort(order[:num_held])


def evenly_spaced_ids(*, num_samples: int, num_ids: int) -> Ids:
    """Return `num_ids` ids in rising order: one from each of `num_ids` equal intervals, chosen by a hash.

    This favours neither sorted nor alternating classes, and does not depend on the seed.
    """
    ends = np.arange(num_ids + 1) * num_samples // num_ids
    lengths = np.diff(ends).astype(np.uint64)
    return ends[:-1] + (mix_each(mix(SCORED), np.arange(num_ids)) % lengths).astype(np.int64)
