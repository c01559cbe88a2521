"""Keys that earlier versions wrote into the files of runs and benchmarks, and the names that replaced them."""

from collections.abc import Mapping
from typing import Any

OLD_KEYS = {
    "images": "samples",
    "images_per_s": "samples_per_s",
    "images_per_rank": "samples_per_rank",
    "split_images": "split_samples",
    "train_images": "train_samples",
    "valid_images": "valid_samples",
    "test_images": "test_samples",
    "told_by": "launcher",
    "starved": "cpu_wait",
    "exchange": "grad_sync",
    "contenders": "variants",
    "contender": "variant",
}


def rename_old_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of one record under today's keys; inner records are left as they are."""
    if OLD_KEYS.keys().isdisjoint(values):
        return dict(values)
    return {OLD_KEYS.get(key, key): value for key, value in values.items()}
