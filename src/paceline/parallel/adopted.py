"""A process group that somebody else initialised, such as Ray Train or a script: used, and left alive."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from paceline.core.errors import ConfigError
from paceline.core.world import World
from paceline.parallel.detect import place_on_host
from paceline.parallel.launchers import started_by
from paceline.parallel.lost_ranks import loss_explained


def adopted_world(environ: Mapping[str, str]) -> World | None:
    """Return the world of the process group of this process; None if there is none, or it has one rank."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    rank, size = dist.get_rank(), dist.get_world_size()
    local_rank, local_size = place_on_host(environ, rank)
    return World(
        rank=rank, size=size, local_rank=local_rank, local_size=local_size, launcher=started_by(environ), adopted=True
    )


@contextmanager
def adopted_group(backend: str, device: torch.device, timeout: float) -> Iterator[Any]:
    """Yield a gloo group for control messages, and remove it alone when the block succeeds. Collective."""
    known = str(dist.get_backend_config())
    if backend not in known:
        raise ConfigError(
            f"the process group of this script uses {known}, but --device {device.type} needs {backend}",
            hint=f"call torch.distributed.init_process_group(backend={backend!r}), or choose another --device",
        )
    with loss_explained():
        control: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        yield control
    dist.destroy_process_group(control)
