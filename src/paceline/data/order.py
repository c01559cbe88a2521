"""The order of samples: a pure function of (seed, epoch, position), so that any step can be entered directly.

Up to 2^20 samples it is an argsort of hashes. Above, it is a keyed permutation that is computed where it is needed:
sorting a billion hashes would take minutes and 24 GB in every rank.
"""

import numpy as np

from paceline.core.keys import mix, mix_each
from paceline.core.setting_types import SampleOrder
from paceline.data.permutation import Permutation
from paceline.data.split import Ids, SampleIds

HELD_OUT = 0x48E1D007
SCORED = 0x5C02ED
MOST_SORTED = 1 << 20
"""The number of samples up to which ids are sorted, as all earlier versions did: 0.2 s and 25 MB."""


def hashed_order(*, key: int, num_samples: int) -> Ids:
    """Return the ids 0 … num_samples-1 in an order that depends on the key alone."""
    return np.argsort(mix_each(key, np.arange(num_samples)), kind="stable")


def is_sorted(num_samples: int, order: SampleOrder) -> bool:
    """Tell whether an order of this kind is an argsort of hashes, with all ids in memory."""
    return order == "argsort" or (order == "auto" and num_samples <= MOST_SORTED)


def shuffled(*, key: int, num_samples: int, order: SampleOrder = "auto") -> SampleIds:
    """Return the ids 0 … num_samples-1 in an order that depends on the key and on the kind of order."""
    if is_sorted(num_samples, order):
        return hashed_order(key=key, num_samples=num_samples)
    return Permutation(key=key, num_ids=num_samples)


def epoch_order(*, seed: int, epoch: int, num_samples: int, order: SampleOrder = "auto") -> SampleIds:
    """Return the order of the samples in an epoch: the same for every rank and world size.

    A slice of it is an array of ids.
    """
    return shuffled(key=mix(seed, epoch), num_samples=num_samples, order=order)


def held_out(*, num_samples: int, fraction: float, order: SampleOrder = "auto") -> tuple[SampleIds, SampleIds]:
    """Return the ids to train on and the ids held out.

    The choice does not depend on the seed, so runs with different seeds are validated on the same samples.
    """
    num_held, key = round(fraction * num_samples), mix(HELD_OUT)
    if is_sorted(num_samples, order):
        sorted_ids = hashed_order(key=key, num_samples=num_samples)
        return np.sort(sorted_ids[num_held:]), np.sort(sorted_ids[:num_held])
    held, kept = range(num_held), range(num_held, num_samples)
    return (
        Permutation(key=key, num_ids=num_samples, positions=kept),
        Permutation(key=key, num_ids=num_samples, positions=held),
    )


def evenly_spaced_ids(*, num_samples: int, num_ids: int) -> Ids:
    """Return `num_ids` ids in rising order: one from each of `num_ids` equal intervals, chosen by a hash.

    This favours neither sorted nor alternating classes, and does not depend on the seed.
    """
    ends = np.arange(num_ids + 1) * num_samples // num_ids
    lengths = np.diff(ends).astype(np.uint64)
    return ends[:-1] + (mix_each(mix(SCORED), np.arange(num_ids)) % lengths).astype(np.int64)
