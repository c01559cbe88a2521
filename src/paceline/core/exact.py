"""Settings that cannot go together with `--exact bitwise`, and why."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from paceline.core.errors import ConfigError


class Unfit(NamedTuple):
    """A value of a setting under which bits depend on more than settings and shards."""

    setting: str
    value: Any
    why: str
    hint: str


UNFIT = (
    Unfit("batch_norm", "sync", "adds up statistics in an order that depends on the ranks", "use --batch-norm ghost"),
    Unfit("mode", "fsdp", "adds up gradients in an order that depends on the ranks", "use --mode ddp"),
    Unfit("mode", "dp", "cuts the batch by devices, not into fixed shards", "use --mode ddp or single"),
    Unfit("compile", value=True, why="may compile other arithmetic in every process", hint="drop --compile"),
    Unfit("compress", "fp16", "rounds what each rank sends, so the result depends on the ranks", "drop --compress"),
    Unfit("compress", "bf16", "rounds what each rank sends, so the result depends on the ranks", "drop --compress"),
    Unfit("compress", "powersgd", "keeps errors that depend on the rank", "drop --compress"),
)


def refuse_inexact(settings: Mapping[str, Any]) -> None:
    """Refuse settings that would break the promise of bitwise."""
    for setting, value, why, hint in UNFIT:
        if settings[setting] == value:
            shown = "" if value is True else f" {value}"
            flag = f"--{setting.replace('_', '-')}{shown}"
            raise ConfigError(f"{flag} {why}, so --exact bitwise cannot hold", hint=f"{hint}, or use --exact order")
