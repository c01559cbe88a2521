"""The ranks of a run, as one of them sees them."""

import os
import socket
from dataclasses import dataclass, field

from paceline.core.processes import process_start


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """All ranks of a run as one of them sees it."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launcher: str = "none"
    """The launcher of the ranks: torchrun, Slurm, flags, environment …; none for a single process."""
    adopted: bool = False
    """Whether somebody else connected the ranks, in a process group that must stay alive."""
    init_method: str = ""
    """Where the ranks connect, as in torch: env://, tcp://host:port or file:///path; empty for a single process."""
    attempt: int = 0
    """Number of times the launcher has restarted these ranks."""
    launch_id: str | None = None
    """Identifies the launch of this node: the same in every attempt, and unique."""
    began: float | None = None
    """Start time of this process in seconds since 1970, if it does nothing but this run."""
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    pid_start: str | None = field(default_factory=lambda: process_start(os.getpid()))
    """When the process started: pids are used again."""

    @property
    def is_lead(self) -> bool:
        """Tell whether this is rank 0, which names the run folder and writes the shared files."""
        return self.rank == 0
