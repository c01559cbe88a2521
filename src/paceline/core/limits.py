"""Limits that depend on the number of ranks: heartbeats per second, and open files in each process."""

import resource

from paceline.core.errors import RanksError

MOST_CONNECTED = 16
"""The number of ranks up to which each connects to every other at the start. More ranks connect as they send."""
FILES_PER_ROUND = 8
"""Connections of a rank for each doubling of the ranks, when ranks connect as they send: rings, trees, votes."""
OTHER_FILES = 64
"""Modules, data, workers and logs."""


def seconds_between_beats(world_size: int) -> float:
    """Return the interval of a rank's heartbeats: all ranks together write about 256 files per second at most."""
    return min(max(1.0, world_size / 256), 30.0)


def open_files(world_size: int, *, is_lead: bool = True) -> int:
    """Return the number of open files that a rank may need; every rank is connected to the store of the lead."""
    is_mesh = world_size <= MOST_CONNECTED
    connections = world_size if is_mesh else FILES_PER_ROUND * (world_size - 1).bit_length()
    return OTHER_FILES + connections + (world_size if is_lead else 0)


def need_open_files(world_size: int, *, is_lead: bool = True) -> None:
    """Raise the limit of this process, and refuse a run that would exceed it, where gloo would abort the process."""
    needed, allowed = open_files(world_size, is_lead=is_lead), raise_open_files()
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
