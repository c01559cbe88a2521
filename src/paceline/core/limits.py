"""Limits that depend on the number of ranks: heartbeats per second, and open files in each process."""

import resource

from paceline.core.errors import RanksError

FILES_PER_RANK = 3
"""Connections to each rank of the run: for gradients, for control messages, and on rank 0 for the store."""
OTHER_FILES = 64
"""Modules, data, workers and logs, and the groups of a bitwise run, whose number does not depend on the world size."""


def seconds_between_beats(world_size: int) -> float:
    """Return the interval of a rank's heartbeats: all ranks together write about 256 files per second at most."""
    return min(max(1.0, world_size / 256), 30.0)


def need_open_files(world_size: int) -> None:
    """Raise the limit of this process, and refuse a run that would exceed it, where gloo would abort the process."""
    needed = OTHER_FILES + FILES_PER_RANK * world_size
    allowed = raise_open_files()
    if allowed < needed:
        raise RanksError(
            f"{world_size} ranks need {needed} open files in each process, but the limit is {allowed}",
            hint=f"run ulimit -n {needed}; if that is refused, raise nofile in /etc/security/limits.conf",
        )


def raise_open_files() -> float:
    """Raise the soft limit of open files of this process and its children to the hard limit, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    except (OSError, ValueError):  # some sandboxes forbid it
        pass
    return float("inf") if soft == resource.RLIM_INFINITY else soft
