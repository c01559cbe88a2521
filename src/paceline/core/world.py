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
    told_by: str = "nobody: it is alone"
    """Who said which rank this is: torchrun, Slurm, flags …"""
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)

    @property
    def is_lead(self) -> bool:
        """Tell whether this is rank 0, which names the run folder and writes what only one may write."""
        return self.rank == 0
