"""How a run is launched: number of processes and nodes, and where they connect. Does not affect the result."""

import dataclasses
import re
from dataclasses import dataclass
from typing import Annotated

from cyclopts import Group, Parameter

from paceline.core.errors import ConfigError, SettingError
from paceline.core.setting_types import MaybeWhole, Numbers, Whole
from paceline.core.settings_record import with_short_repr

RANKS = Group("Launching ranks", sort_key=8)
NODES = re.compile(r"(\d+)(?::(\d+))?")


@with_short_repr
@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Start:
    """The user's settings for processes and nodes; torchrun, Slurm or mpirun may set all of them instead."""

    nproc: Annotated[MaybeWhole, Parameter(alias="--nproc-per-node", group=RANKS)] = None
    """Ranks to start on this node (threads with --mode dp on a CPU)."""
    nnodes: Annotated[str | None, Parameter(group=RANKS)] = None
    """Number of nodes, such as 2, or a range such as 1:4; run this command on every node. Default: 1."""
    node_rank: Annotated[MaybeWhole, Parameter(group=RANKS)] = None
    """Rank of this node, from 0."""
    rendezvous: Annotated[str | None, Parameter(group=RANKS)] = None
    """HOST:PORT where the nodes connect: an address of node 0 and a free port."""
    max_restarts: Annotated[MaybeWhole, Parameter(group=RANKS)] = None
    """Times to restart all ranks from the last checkpoint when one fails. Default: 0."""
    max_requeues: Annotated[Whole, Parameter(group=RANKS)] = 100
    """Times that a Slurm job requeues itself at its time limit."""
    rank: Annotated[MaybeWhole, Parameter(group=RANKS)] = None
    """Rank of this process, if every rank is started by hand."""
    world_size: Annotated[MaybeWhole, Parameter(group=RANKS)] = None
    """Number of ranks, if every rank is started by hand."""
    local_rank: Annotated[MaybeWhole, Parameter(alias="--local_rank", group=RANKS)] = None
    """Rank of this process on its node, which selects its GPU; torch.distributed.launch passes it."""
    init_method: Annotated[str, Parameter(group=RANKS)] = "env://"
    """Where ranks started by hand connect: tcp://HOST:PORT, file:///path or env:// (MASTER_ADDR, MASTER_PORT)."""
    backend: Annotated[str | None, Parameter(group=RANKS)] = None
    """Backend of torch.distributed for gradients, such as ucc or mpi. Default: nccl for GPUs, gloo for a CPU."""
    devices: Annotated[Numbers, Parameter(group=RANKS)] = ()
    """GPUs that this process may use, as in --devices 0,1."""
    trust: Annotated[bool, Parameter(group=RANKS, negative="")] = False
    """Run code that lies inside the run folder of --resume, as of a folder from elsewhere."""
    check_up: Annotated[bool, Parameter(group=RANKS, negative="")] = False
    """Before the first step, time compute, memory and links of all ranks, and name a slow one."""
    timeout: Annotated[float, Parameter(group=RANKS)] = 300.0
    """Seconds to wait for other ranks before giving up and naming the missing ones."""

    def __post_init__(self) -> None:
        for name in ("nproc", "world_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingError(name, f"is {value}, but must be at least 1")
        for name in ("max_requeues", "max_restarts", "local_rank"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise SettingError(name, f"is {value}, but must be at least 0")
        if not 0 < self.timeout < 10**6:
            raise SettingError("timeout", f"is {self.timeout}, but must be a number of seconds above 0")
        _check_nodes(self)
        _check_by_hand(self)

    @property
    def node_range(self) -> tuple[int, int]:
        """The fewest and the most nodes to train on."""
        match = NODES.fullmatch(self.nnodes or "1")
        assert match is not None
        return int(match[1]), int(match[2] or match[1])

    @property
    def by_hand(self) -> bool:
        """Tell whether the user starts every rank with a separate command."""
        return self.rank is not None


START_SETTINGS = tuple(field.name for field in dataclasses.fields(Start))


def is_endpoint(text: str) -> bool:
    """Tell whether a text is HOST:PORT."""
    host, _, port = text.rpartition(":")
    return bool(host) and "://" not in host and port.isdecimal() and 0 < int(port) < 65536


def _check_nodes(start: Start) -> None:
    if start.nnodes is None:
        _refuse_unused(start)
        return
    match = NODES.fullmatch(start.nnodes)
    if match is None or not 1 <= int(match[1]) <= int(match[2] or match[1]):
        raise SettingError("nnodes", f'is "{start.nnodes}", but must be a number such as 2, or a range such as 1:4')
    nodes = start.node_range[1]
    if start.node_rank is not None and not 0 <= start.node_rank < nodes:
        raise SettingError("node_rank", f"is {start.node_rank}, but must be between 0 and {nodes - 1}")
    if nodes == 1:
        return
    if start.rendezvous is None:
        raise ConfigError(
            f"--nnodes {start.nnodes} needs --rendezvous, the address at which the nodes connect",
            hint="add --rendezvous HOST:PORT with an address of node 0, the same on every node",
        )
    if not is_endpoint(start.rendezvous):
        raise SettingError("rendezvous", f'is "{start.rendezvous}", but must be HOST:PORT, such as node0:29400')


def _refuse_unused(start: Start) -> None:
    """Refuse settings for several nodes without --nnodes: the node would train alone."""
    for flag, value in (("--node-rank", start.node_rank), ("--rendezvous", start.rendezvous)):
        if value is not None:
            raise ConfigError(f"{flag} {value} is set without --nnodes", hint="add --nnodes, the same on every node")


def _check_by_hand(start: Start) -> None:
    if start.rank is None:
        if start.world_size is not None:
            raise ConfigError("--world-size is set without --rank", hint="add --rank 0, 1, …")
        return
    if start.world_size is None:
        raise ConfigError("--rank is set without --world-size", hint="add --world-size")
    if not 0 <= start.rank < start.world_size:
        raise SettingError("rank", f"is {start.rank}, but must be between 0 and {start.world_size - 1}")
    if not start.init_method.startswith(("env://", "tcp://", "file://")):
        raise SettingError(
            "init_method",
            f'is "{start.init_method}"',
            hint="use tcp://HOST:PORT, file:///shared/path or env://",
        )
    if start.nproc is not None or start.nnodes is not None:
        raise ConfigError(
            "--rank cannot be combined with --nproc or --nnodes: it starts one rank, they start many",
            hint="use --rank, or --nproc and --nnodes",
        )
