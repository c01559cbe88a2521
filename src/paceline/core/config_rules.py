"""Settings that cannot be combined with `--exact bitwise`, and why."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from paceline.core.errors import ConfigError, flag


class Unfit(NamedTuple):
    """A value of a setting that makes the result depend on more than the settings and shards."""

    setting: str
    value: Any
    why: str
    hint: str


UNFIT = (
    Unfit("batch_norm", "sync", "sums statistics in an order that depends on the world size", "use --batch-norm ghost"),
    Unfit("mode", "dp", "splits the batch by device, not into fixed shards", "use --mode ddp or single"),
    Unfit("compile", value=True, why="may generate different arithmetic in every process", hint="drop --compile"),
    Unfit(
        "compress",
        "fp16",
        "rounds the gradients of each rank, so the result depends on the world size",
        "drop --compress",
    ),
    Unfit(
        "compress",
        "bf16",
        "rounds the gradients of each rank, so the result depends on the world size",
        "drop --compress",
    ),
)


def refuse_inexact(settings: Mapping[str, Any]) -> None:
    """Refuse settings under which a bitwise result is impossible."""
    for setting, value, why, hint in UNFIT:
        if settings[setting] == value:
            shown = "" if value is True else f" {value}"
            raise ConfigError(
                f"{flag(setting)}{shown} cannot be combined with --exact bitwise: it {why}",
                hint=f"{hint}, or use --exact order",
            )
