"""Measures the ranks of a team: hardware and versions, shared folder, clocks and links."""

import os
import platform
import resource
import secrets
import shutil
import socket
import time
from collections.abc import MutableMapping
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import psutil
import torch
import torch.distributed as dist

from paceline.core.world import World
from paceline.doctor.checkup import Checkup, FolderCheck, RankCheck
from paceline.doctor.doctor_options import SMALLEST_ALL_REDUCE, DoctorOptions
from paceline.parallel.amx import find_bf16
from paceline.parallel.device import describe_device
from paceline.parallel.join import joined
from paceline.parallel.link_sweep import time_all_reduce
from paceline.parallel.speed_check import measure_speeds
from paceline.parallel.team import Team
from paceline.parallel.visible_gpus import count_gpus
from paceline.records.environment import cpu_name
from paceline.records.profile import LinkPoint
from paceline.records.writer import is_locked, locked

GROWTH = 4
SECONDS_EACH = 4.0
"""Seconds of an all-reduce after which the sweep stops."""
NUM_CLOCKS = 9
BACKENDS = ("gloo", "nccl", "mpi")
BLOCK = bytes(1 << 20)
NUM_BLOCKS = 16


def join_and_check(
    world: World, options: DoctorOptions, *, largest: int, timeout: float, environ: MutableMapping[str, str]
) -> Checkup:
    """Connect this rank to the others and check everything. Collective: every rank must call it."""
    with joined(world, device=options.device, timeout=timeout) as team:
        gpus = 0 if options.device == "cpu" else count_gpus(environ)
        return check_up(team, options.runs_dir, gpus_there=gpus, largest=largest, environ=environ)


def check_up(team: Team, folder: Path, *, gpus_there: int, largest: int, environ: MutableMapping[str, str]) -> Checkup:
    """Run all checks. Collective: every rank must call it."""
    bf16 = find_bf16(team, environ)
    ranks = team.gather(replace(_check_rank(team, gpus_there, environ), bf16=bf16[team.world.rank]))
    folders = team.gather(_check_folder(team, folder))
    return Checkup(
        ranks=tuple(ranks),
        folder=tuple(folders),
        clocks=_clocks(team),
        sweep=_sweep(team, largest),
        speeds=measure_speeds(team),
        backend="none" if team.world.size == 1 else str(dist.get_backend()),
    )


def _check_rank(team: Team, gpus_there: int, environ: MutableMapping[str, str]) -> RankCheck:
    interface = environ.get("GLOO_SOCKET_IFNAME") if team.world.size > team.world.local_size else None
    return RankCheck(
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


def _check_folder(team: Team, folder: Path) -> FolderCheck:
    """Check the folder of runs on all ranks. Collective: every rank must call it."""
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
        return FolderCheck(rank=team.world.rank, path=str(folder), kind="unknown", error=problem)
    if team.is_lead:
        with locked(lock):
            team.barrier()
            team.barrier()
        sees, honours = True, True
    else:
        team.barrier()
        sees = lock.exists()
        honours = is_locked(lock) if sees else False
        team.barrier()
    try:
        return _timed_folder(team.world.rank, folder, mine, sees=sees, honours=honours)
    except OSError as cause:
        return FolderCheck(rank=team.world.rank, path=str(folder), kind="unknown", error=str(cause.strerror))
    finally:
        team.barrier()
        with suppress(OSError):
            lock.unlink(missing_ok=True)
            if not was_there:
                folder.rmdir()


def _timed_folder(rank: int, folder: Path, name: str, *, sees: bool, honours: bool) -> FolderCheck:
    return FolderCheck(
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
    """Return the offset of each clock from the lead's: read after a barrier, best of a few. Collective."""
    readings = []
    for _ in range(NUM_CLOCKS):
        team.barrier()
        readings.append(team.gather(time.time()))
    ahead = [[clock - clocks[0] for clock in clocks] for clocks in readings]
    return tuple(min(rank, key=abs) for rank in zip(*ahead, strict=True))


def _sweep(team: Team, largest: int) -> tuple[LinkPoint, ...]:
    """Time all-reduces of growing size until they take too long. Collective: every rank must call it."""
    points: list[LinkPoint] = []
    size = SMALLEST_ALL_REDUCE
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
    """Return the bytes per second of an interface, if known; virtual interfaces report arbitrary values."""
    speed = psutil.net_if_stats().get(interface)
    return speed.speed * 1e6 / 8 if speed is not None and speed.speed > 0 else None


def _can_listen() -> bool:
    with suppress(OSError), socket.socket() as probe:
        probe.bind(("", 0))
        probe.listen()
        return True
    return False


def file_system(path: Path) -> str:
    """Return the kind of file system that a folder is on, such as ext4 or nfs4."""
    whole = path.resolve()
    mounts = [part for part in psutil.disk_partitions(all=True) if whole.is_relative_to(part.mountpoint)]
    return max(mounts, key=lambda part: len(part.mountpoint)).fstype if mounts else "unknown"


def can_replace(folder: Path, name: str) -> bool:
    """Tell whether a file can be replaced atomically."""
    target, scratch = folder / name, folder / f"{name}.new"
    target.write_bytes(b"old")
    scratch.write_bytes(b"new")
    scratch.replace(target)
    is_new = target.read_bytes() == b"new" and not scratch.exists()
    target.unlink()
    return is_new


def time_sync(folder: Path, name: str, *, repeats: int = 5) -> float:
    """Return the median seconds to write and sync a small file."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        _write(folder / name, b"x", 1)
        seconds.append(time.perf_counter() - start)
    (folder / name).unlink()
    return sorted(seconds)[repeats // 2]


def time_writing(folder: Path, name: str) -> float:
    """Return the bytes per second for writing and syncing a file of a few MB."""
    start = time.perf_counter()
    _write(folder / name, BLOCK, NUM_BLOCKS)
    seconds = time.perf_counter() - start
    (folder / name).unlink()
    return len(BLOCK) * NUM_BLOCKS / seconds


def _write(path: Path, block: bytes, number: int) -> None:
    with path.open("wb") as file:
        for _ in range(number):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
