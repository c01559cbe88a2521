"""Who takes part in a run, and which part this process plays."""

import os
import socket
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """All ranks of a run as one of them sees it."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    told_by: str = "nobody"
    """Who said which rank this is: torchrun, Slurm, flags …"""
    meeting: str = ""
    """Where the ranks meet: env://, tcp://host:port or file:///path; nowhere when alone."""
    attempt: int = 0
    """How often the launcher has started these ranks again."""
    launch_id: str | None = None
    """What names the launch by which this node takes part: the same in every attempt, and never used again."""
    began: float | None = None
    """When this process began, in seconds since 1970, where it has no other purpose than the run."""
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)

    @property
    def is_lead(self) -> bool:
        """Tell whether this is rank 0, which names the run folder and writes what only one may write."""
        return self.rank == 0
