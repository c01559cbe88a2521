"""Whether to start ranks, how many and where: decided before torch is imported."""

import ipaddress
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from paceline.core.config import Config
from paceline.core.errors import ConfigError
from paceline.core.start import Start
from paceline.core.units import plural
from paceline.core.world import World
from paceline.parallel.detect import has_one_task_per_node
from paceline.parallel.node_rounds import NodePlan
from paceline.parallel.visible_gpus import count_gpus


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchPlan:
    """The ranks of one node, and how its launcher connects to those of other nodes."""

    nproc: int
    nnodes: str = "1"
    node_rank: int | None = None
    rendezvous: str | None = None
    max_restarts: int = 0
    timeout: float = 300.0
    threads: int
    """CPU threads per rank."""

    @property
    def world_size(self) -> int:
        """The maximum number of ranks on all nodes."""
        return self.nproc * self._most_nodes

    @property
    def _most_nodes(self) -> int:
        return int(self.nnodes.rpartition(":")[2])

    @property
    def nodes(self) -> NodePlan:
        """How this node's agent finds those of the others."""
        fewest, is_numbered = int(self.nnodes.partition(":")[0]), self.node_rank is not None
        host = (self.rendezvous or "").rpartition(":")[0]
        return NodePlan(
            endpoint=self.rendezvous,
            node_rank=self.node_rank,
            fewest=fewest,
            most=self._most_nodes,
            timeout=self.timeout,
            may_serve=self.node_rank == 0 if is_numbered else self.rendezvous is None or is_this_host(host),
            # a node that comes back has its number again
            checks_all=is_numbered and fewest == self._most_nodes and not self.max_restarts,
            replaces_lost=self.max_restarts > 0,
        )

    @property
    def waiting(self) -> str:
        """Describes what this launcher does until it has started ranks."""
        if self.rendezvous is None:
            return "starting the ranks"
        if self.node_rank is None:
            return f"this node was waiting for the others of --nnodes {self.nnodes} at {self.rendezvous}"
        return f"node {self.node_rank} was waiting for {self.other_nodes} at {self.rendezvous}"

    @property
    def other_nodes(self) -> str:
        """The nodes that this one waits for: by index if there are few."""
        others = [str(node) for node in range(self._most_nodes) if node != self.node_rank]
        if len(others) > 4:
            return f"{len(others)} other nodes"
        return f"node{'s' if len(others) > 1 else ''} {', '.join(others)}"

    def torchrun_args(self, args: Sequence[str], log_dir: Path) -> list[str]:
        """Return the args for torchrun whose ranks run `paceline` with these; its log folders go below `log_dir`."""
        ranks = [f"--nproc-per-node={self.nproc}", f"--max-restarts={self.max_restarts}", "--monitor-interval=0.1"]
        place = [f"--nnodes={self.nnodes}", "--rdzv-backend=paceline", "--rdzv-id=paceline"]
        return [*ranks, f"--log-dir={log_dir}", *place, "-m", "paceline", *args]


def plan_launch(config: Config, start: Start, world: World, environ: Mapping[str, str]) -> LaunchPlan | None:
    """Return the ranks to start, or None if this process is itself the rank that trains."""
    num_nodes = start.node_range[1]
    is_one_process = config.mode in {"single", "dp"}
    if is_one_process and num_nodes > 1:
        raise ConfigError(
            f"--mode {config.mode} is one process, but there are {start.nnodes} nodes",
            hint="drop --mode, or add --rank 0 --world-size 1 to train alone",
        )
    if start.by_hand or is_one_process or _is_rank(world, start):
        return None
    nproc = _ranks_here(config, start, environ)
    threads = config.threads or max(1, len(os.sched_getaffinity(0)) // nproc)
    common = {"nproc": nproc, "max_restarts": start.max_restarts or 0, "timeout": start.timeout, "threads": threads}
    if world.size > 1:
        _refuse_ranks_in_ranks(world, environ)
        address = world.init_method.removeprefix("tcp://")
        return LaunchPlan(nnodes=str(world.size), node_rank=world.rank, rendezvous=address, **common)
    if nproc == 1 and num_nodes == 1:
        return None
    rendezvous = start.rendezvous if num_nodes > 1 else None
    return LaunchPlan(nnodes=start.nnodes or "1", node_rank=start.node_rank, rendezvous=rendezvous, **common)


def _is_rank(world: World, start: Start) -> bool:
    """Tell whether a launcher made this process a rank, rather than the launcher of its node."""
    asks_for_ranks = (start.nproc or 1) > 1
    if world.size == 1:
        return world.launcher != "none" and not asks_for_ranks and start.node_range[1] == 1
    return not asks_for_ranks or world.launcher in {"torchrun", "environment"}


def _refuse_ranks_in_ranks(world: World, environ: Mapping[str, str]) -> None:
    """Refuse to start ranks in every process if a node has several processes."""
    uneven = world.launcher == "Slurm" and not has_one_task_per_node(environ)
    if world.local_size > 1 or uneven:
        raise ConfigError(
            f"--nproc starts ranks in every process, but {world.launcher} runs several processes per node",
            hint="run one per node, as with srun --ntasks-per-node=1, or drop --nproc to make each process a rank",
        )


def refuse_restarts(start: Start, plan: LaunchPlan | None) -> None:
    """Refuse restarts where this process is itself the rank."""
    if plan is None and start.max_restarts:
        raise ConfigError(
            f"--max-restarts {start.max_restarts} has no effect: Paceline starts no ranks here that it could restart",
            hint="add --nproc, or let the launcher of this process restart it",
        )


def is_this_host(host: str) -> bool:
    """Tell whether a name or address belongs to this machine."""
    try:
        address = socket.gethostbyname(host)
    except OSError:
        return False
    here = {found.address for addresses in psutil.net_if_addrs().values() for found in addresses}
    return host == socket.gethostname() or address in here or ipaddress.ip_address(address).is_loopback


def _ranks_here(config: Config, start: Start, environ: Mapping[str, str]) -> int:
    """Return the number of ranks of this node: --nproc, else one per GPU, else one."""
    if ":" in config.device and (start.nproc or 1) > 1:
        raise ConfigError(
            f"--device {config.device} is one GPU, but --nproc {start.nproc} needs one per rank",
            hint="use --device cuda, and --devices to choose GPUs",
        )
    gpus = 0 if config.device == "cpu" else len(start.devices) or count_gpus(environ)
    if start.nproc is not None and gpus and start.nproc > gpus:
        raise ConfigError(
            f"--nproc {start.nproc} is more than the {plural(gpus, 'GPU')} of this machine",
            hint=f"use --nproc {gpus}, or --device cpu",
        )
    if start.nproc is not None:
        return start.nproc
    return gpus if gpus and config.device in {"auto", "cuda"} else 1
