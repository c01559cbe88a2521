"""Settings that were given but change nothing, each with what it needs."""

from collections.abc import Iterator, Mapping
from typing import Any

from paceline.core.errors import flag

NEEDS: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("decay_every", "schedule", ("step",)),
    ("decay_rate", "schedule", ("step", "milestones")),
    ("reference_batch", "lr_scaling", ("linear", "sqrt")),
    ("momentum", "optimizer", ("sgd",)),
)
"""A setting, and the values of another one with which it has an effect."""
OF_SEVERAL_RANKS = ("compress", "bucket_mb", "check_replicas")


def without_effect(values: Mapping[str, Any], defaults: Mapping[str, Any], *, world_size: int) -> Iterator[str]:
    """Yield a sentence for each setting that differs from its default, but changes nothing in this run."""
    for setting, other, fitting in NEEDS:
        value = values[setting]
        if value != defaults[setting] and values[other] not in fitting:
            yield f"{flag(setting)} {value} has no effect with {flag(other)} {values[other]}"
    if values["shards"] is not None and values["exact"] != "bitwise" and values["batch_norm"] != "ghost":
        yield f"--shards {values['shards']} has no effect with neither --exact bitwise nor --batch-norm ghost"
    for setting in OF_SEVERAL_RANKS if world_size == 1 else ():
        if values[setting] != defaults[setting]:
            yield f"{flag(setting)} {values[setting]} has no effect on one rank"
