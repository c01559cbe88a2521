"""Join the other ranks as a team: by connecting, or by adopting the process group that somebody else initialised."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from paceline.core.errors import ConfigError, FinishedError, RanksError
from paceline.core.limits import MOST_CONNECTED, need_open_files
from paceline.core.messages import say_if_slow
from paceline.core.stopping import wait_interruptibly
from paceline.core.units import plural
from paceline.core.world import World
from paceline.parallel.adopted import adopted_group
from paceline.parallel.device import choose_device, hold_memory, refuse_unusable_gpus, set_threads
from paceline.parallel.lost_ranks import loss_explained
from paceline.parallel.nccl import nccl_options, refuse_shared_gpus, torchrun_store
from paceline.parallel.network import choose_interface
from paceline.parallel.rendezvous import open_store, remove_rendezvous_files
from paceline.parallel.team import Team
from paceline.parallel.visible_gpus import count_gpus

USUAL = {"cpu": "gloo", "cuda": "nccl"}


@contextmanager
def joined(  # noqa: PLR0913 - one argument per setting
    world: World,
    *,
    device: str = "auto",
    threads: int | None = None,
    timeout: float = 300.0,
    backend: str | None = None,
    asked: Callable[[], int | None] = lambda: None,
) -> Iterator[Team]:
    """Prepare this process as a rank (memory, device, network, threads), and join the others as in `join`.

    Every command that runs as a rank uses it. Collective: every rank must call it.
    """
    hold_memory()
    chosen = choose_device(device, world)
    if device == "auto" and chosen.type == "cpu" and world.local_size > 1:
        refuse_unusable_gpus(count_gpus(os.environ))
    if backend is not None:
        backend_for(chosen, backend)  # refuses a wrong name for one rank too, which has no process group
    if not world.adopted:
        choose_interface(world, os.environ)
    with join(world, chosen, timeout=timeout, backend=backend, asked=asked) as team:
        set_threads(threads, num_sharing=team.num_sharing)
        yield team


@contextmanager
def join(
    world: World,
    device: torch.device,
    *,
    timeout: float = 300.0,
    backend: str | None = None,
    asked: Callable[[], int | None] = lambda: None,
) -> Iterator[Team]:
    """Join the other ranks, and leave when the block succeeds; after a failure peers may be stuck, so just exit.

    A signal while ranks are missing raises StoppedError; `asked` returns one that was caught before. Collective: every
    rank must call it.
    """
    if world.size == 1:
        yield Team(world, device)
        return
    backend = backend_for(device, backend)
    if world.adopted:
        with adopted_group(backend, device, timeout) as control:
            team = _counted(Team(world, device, control, timedelta(seconds=timeout)))
            yield team
            team.barrier()
        return
    if not dist.is_available() or not dist.is_backend_available(backend):
        raise ConfigError(
            f"this torch has no {backend} backend",
            hint="install a torch with it, or drop --backend and use --device cpu",
        )
    need_open_files(world.size, is_lead=world.is_lead)
    if world.size > MOST_CONNECTED:
        os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")  # connect when the first message is sent
    others = plural(world.size - 1, "other rank")
    waiting = f"rank {world.rank} was waiting for {others} at {_where(world)}"
    notice = f"rank {world.rank} waits up to {timeout:g} s for {others} at {_where(world)}"
    has_own_terminal = world.is_lead or world.launcher == "flags"  # other ranks would repeat the message
    with say_if_slow(notice) if has_own_terminal else nullcontext():
        team = wait_interruptibly(lambda: _connect(world, device, backend, timeout), waiting, asked)
    try:
        with loss_explained():
            yield team
            team.barrier()
    except FinishedError:  # of all ranks alike, before the first step
        dist.destroy_process_group()
        raise
    remove_rendezvous_files(world)
    dist.destroy_process_group()


def backend_for(device: torch.device, asked: str | None = None) -> str:
    """Return the backend for tensors of a device: that of --backend, if it can carry them, or else torch's default."""
    if asked is None:
        return USUAL.get(device.type) or dist.get_default_backend_for_device(device)
    capability = {name: kinds for name, kinds in dist.Backend.backend_capability.items() if name != "fake"}
    devices = capability.get(asked)
    if devices is None:
        known = ", ".join(sorted(capability))
        raise ConfigError(f"torch knows no backend {asked}", hint=f"use one of {known}, or drop --backend")
    if device.type not in devices:
        raise ConfigError(
            f"--backend {asked} carries tensors of {' and '.join(devices)}, but the device is {device.type}",
            hint="drop --backend, or choose another --device",
        )
    return asked


def _connect(world: World, device: torch.device, backend: str, timeout: float) -> Team:
    """Return the team once all ranks have joined. Collective: every rank must call it."""
    limit = timedelta(seconds=timeout)
    store = open_store(world, timeout)
    try:
        options: dict[str, Any] = {"timeout": limit}
        if backend == "nccl":
            store = torchrun_store(world, limit) if store is None else store
            refuse_shared_gpus(store, world, device)
            options = nccl_options(device, limit, os.environ)
        dist.init_process_group(backend, store=store, rank=world.rank, world_size=world.size,
                                init_method="env://" if store is None else None, **options)  # fmt: skip
        # gloo can carry both gradients and control messages: a second group would double the connections
        control: Any = None if backend == "gloo" else dist.new_group(backend="gloo", timeout=limit)
    except (RuntimeError, ValueError) as cause:
        problem = str(cause).splitlines()[0]
        raise RanksError(
            f"rank {world.rank} could not join the {world.size} ranks at {_where(world)}: {problem}",
            hint="are all ranks running, and can their hosts reach each other? GLOO_SOCKET_IFNAME names the interface",
        ) from cause
    return _counted(Team(world, device, control, limit))


def _counted(team: Team) -> Team:
    with loss_explained():
        team.count_neighbours()
    return team


def _where(world: World) -> str:
    return world.init_method if world.launcher != "torchrun" else "torchrun's rendezvous"
