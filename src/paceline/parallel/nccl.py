"""Connecting ranks over NCCL: one GPU per rank, a time limit behind that of the control group, a flight recorder."""

import json
from collections import defaultdict
from collections.abc import MutableMapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from paceline.core.errors import ConfigError
from paceline.core.units import ranks_text
from paceline.core.world import World
from paceline.parallel.device import gpu_uuid

GRACE = timedelta(seconds=60)
"""NCCL's watchdog ends a process without an explanation. The control group times out this much earlier, and names the
rank that is late."""
FLIGHT_RECORDER = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
"""The last collectives of each rank are kept, and written to /tmp/nccl_trace_rank_… if one times out."""


def nccl_options(device: torch.device, limit: timedelta, environ: MutableMapping[str, str]) -> dict[str, Any]:
    """Return the arguments of init_process_group for a GPU; variables that the user has set are kept.

    With `device_id` NCCL connects at once, so that a wrong GPU or network is reported while the ranks join.
    """
    for name, value in FLIGHT_RECORDER.items():
        environ.setdefault(name, value)
    return {"timeout": limit + GRACE, "device_id": device}


def torchrun_store(world: World, limit: timedelta) -> dist.Store:
    """Return the store that torchrun provides. Collective: every rank must call it."""
    store, _rank, _size = next(iter(rendezvous("env://", world.rank, world.size, timeout=limit)))
    store.set_timeout(limit)
    return store


def refuse_shared_gpus(store: dist.Store, world: World, device: torch.device) -> None:
    """Refuse ranks that have chosen the same GPU, which NCCL does not support. Collective: every rank must call it."""
    store.set(f"gpu/{world.rank}", json.dumps([world.host, gpu_uuid(device)]))
    answers = store.multi_get([f"gpu/{rank}" for rank in range(world.size)])
    shared = find_shared_gpu([tuple(json.loads(answer)) for answer in answers])
    if shared is not None:
        ranks, host = shared
        raise ConfigError(
            f"{ranks_text(ranks)} use the same GPU of {host}, but NCCL needs one GPU per rank",
            hint="start at most one rank per GPU, and set LOCAL_RANK or --local-rank to 0, 1, … on each host",
        )


def find_shared_gpu(gpus: Sequence[tuple[str, str | None]]) -> tuple[list[int], str] | None:
    """Return the ranks that share a GPU, and its host, from the host and UUID of each rank's GPU."""
    users: dict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, (host, uuid) in enumerate(gpus):
        if uuid is not None:
            users[host, uuid].append(rank)
    return next(((ranks, host) for (host, _), ranks in users.items() if len(ranks) > 1), None)
