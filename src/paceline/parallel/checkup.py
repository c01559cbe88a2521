"""Looks at the ranks of a team: what each has, whether they share a folder and the time, and what their links give."""

import os
import platform
import resource
import secrets
import shutil
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

from paceline.parallel.amx import find_bf16
from paceline.parallel.device import describe_device
from paceline.parallel.sweep import time_all_reduce
from paceline.parallel.team import Team
from paceline.records.checkup import Checkup, FolderFacts, RankFacts
from paceline.records.disk import can_replace, file_system, is_locked, locked, time_sync, time_writing
from paceline.records.environment import cpu_name
from paceline.records.profile import LinkPoint

SMALLEST, GROWTH = 1 << 10, 4
SECONDS_EACH = 4.0
"""An all-reduce that takes so long is the largest of the sweep."""
NUM_CLOCKS = 9
BACKENDS = ("gloo", "nccl", "mpi")


def check_up(team: Team, folder: Path, *, gpus_there: int, largest: int, environ: Mapping[str, str]) -> Checkup:
    """Look at everything. Collective: every rank must call it."""
    bf16 = find_bf16(team, environ)
    ranks = team.gather(replace(_rank_facts(team, gpus_there, environ), bf16=bf16[team.world.rank]))
    folders = team.gather(_folder_facts(team, folder))
    return Checkup(
        ranks=tuple(ranks),
        folder=tuple(folders),
        clocks=_clocks(team),
        sweep=_sweep(team, largest),
        backend="none" if team.world.size == 1 else str(dist.get_backend()),
    )


def _rank_facts(team: Team, gpus_there: int, environ: Mapping[str, str]) -> RankFacts:
    interface = environ.get("GLOO_SOCKET_IFNAME") if team.world.size > team.world.local_size else None
    return RankFacts(
        rank=team.world.rank,
        host=team.world.host,
        device=describe_device(team.device, cpu_name()),
        versions={"python": platform.python_version(), "paceline": version("paceline"), "torch": torch.__version__},
        backends=tuple(name for name in BACKENDS if dist.is_available() and dist.is_backend_available(name)),
        cores=len(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        load=os.getloadavg()[0],
        gpus_there=gpus_there,
        gpus_seen=torch.cuda.device_count() if torch.cuda.is_available() else 0,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        shared_memory=_free_shared_memory(),
        interface=interface,
        line_rate=None if interface is None else _line_rate(interface),
        can_listen=_can_listen(),
    )


def _folder_facts(team: Team, folder: Path) -> FolderFacts:
    """Try the folder of the runs, all ranks together. Collective: every rank must call it."""
    token = team.from_lead(secrets.token_hex(4))
    lock, mine = folder / f".doctor-{token}", f".doctor-{token}-{team.world.rank}"
    problem, was_there = None, folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if team.is_lead:
            lock.touch()
    except OSError as cause:
        problem = f"{cause.strerror}: {cause.filename}"
    if team.any(problem is not None):
        return FolderFacts(rank=team.world.rank, path=str(folder), kind="unknown", error=problem)
    if team.is_lead:
        with locked(lock):
            team.meet()
            team.meet()
        sees, honours = True, True
    else:
        team.meet()
        sees = lock.exists()
        honours = is_locked(lock) if sees else False
        team.meet()
    try:
        return _timed_folder(team.world.rank, folder, mine, sees=sees, honours=honours)
    except OSError as cause:
        return FolderFacts(rank=team.world.rank, path=str(folder), kind="unknown", error=str(cause.strerror))
    finally:
        team.meet()
        with suppress(OSError):
            lock.unlink(missing_ok=True)
            if not was_there:
                folder.rmdir()


def _timed_folder(rank: int, folder: Path, name: str, *, sees: bool, honours: bool) -> FolderFacts:
    return FolderFacts(
        rank=rank,
        path=str(folder),
        kind=file_system(folder),
        sees_lead=sees,
        locks=honours,
        replaces=can_replace(folder, name),
        sync_seconds=time_sync(folder, name),
        bytes_per_second=time_writing(folder, name),
    )


def _clocks(team: Team) -> tuple[float, ...]:
    """Return by how much each clock is ahead of the lead's: read when all have met, best of a few. Collective."""
    readings = []
    for _ in range(NUM_CLOCKS):
        team.meet()
        readings.append(team.gather(time.time()))
    ahead = [[clock - clocks[0] for clock in clocks] for clocks in readings]
    return tuple(min(rank, key=abs) for rank in zip(*ahead, strict=True))


def _sweep(team: Team, largest: int) -> tuple[LinkPoint, ...]:
    """Time all-reduces of growing size until they take too long. Collective: every rank must call it."""
    points: list[LinkPoint] = []
    size = SMALLEST
    while team.world.size > 1 and size <= largest:
        point = time_all_reduce(team, size, repeats=10 if size < 1 << 20 else 3)
        points.append(point)
        if point.seconds * GROWTH > SECONDS_EACH:
            break
        size *= GROWTH
    return tuple(points)


def _free_shared_memory() -> int:
    with suppress(OSError):
        return shutil.disk_usage("/dev/shm").free
    return 0


def _line_rate(interface: str) -> float | None:
    """Return the bytes a second of an interface, where the system knows it: virtual ones state what they like."""
    speed = psutil.net_if_stats().get(interface)
    return speed.speed * 1e6 / 8 if speed is not None and speed.speed > 0 else None


def _can_listen() -> bool:
    with suppress(OSError), socket.socket() as probe:
        probe.bind(("", 0))
        probe.listen()
        return True
    return False
