"""Finding out which rank this process is. The only place that reads it from the environment."""

from collections.abc import Mapping

from paceline.core.errors import ConfigError
from paceline.core.world import World


def detect_world(environ: Mapping[str, str]) -> World:
    """Return the world that the launcher described, or a world of one."""
    if "WORLD_SIZE" not in environ:
        return World()
    rank, size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    if not 0 <= rank < size:
        raise ConfigError(f"RANK={rank} is not a rank of WORLD_SIZE={size}", hint=f"ranks go from 0 to {size - 1}")
    return World(
        rank=rank,
        size=size,
        local_rank=_number(environ, "LOCAL_RANK", default=rank),
        local_size=_number(environ, "LOCAL_WORLD_SIZE", default=size),
        told_by="torchrun" if "TORCHELASTIC_RUN_ID" in environ else "environment",
    )


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdigit():
        given = "is not set" if text is None else f'is "{text}", not a number'
        raise ConfigError(
            f"WORLD_SIZE is set, but {name} {given}", hint=f"unset WORLD_SIZE to train alone, or set {name}"
        )
    return int(text)
