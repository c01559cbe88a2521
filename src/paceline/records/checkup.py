"""What `paceline doctor` looked at: facts of every rank, of the folder they share, and of the links between them."""

from dataclasses import dataclass
from typing import Literal

from paceline.records.profile import LinkPoint

Bf16 = Literal["works", "without AMX", "fails"]
"""How torch computes in bf16 on a CPU: as it is, only without AMX, or not at all because the process dies."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFacts:
    """One rank and the host it is on."""

    rank: int
    host: str
    device: str
    versions: dict[str, str]
    """Of Python, Paceline and torch."""
    backends: tuple[str, ...]
    cores: int
    """That this rank may use."""
    threads: int
    load: float
    """Processes that want a core, over the last minute."""
    gpus_there: int
    """That the driver knows of."""
    gpus_seen: int
    """That torch can use."""
    open_files: int
    """That a process may have."""
    shared_memory: int
    """Bytes free in /dev/shm, which data workers use."""
    interface: str | None
    """Network interface towards the other ranks; None when all are on one host."""
    line_rate: float | None
    """Of that interface, in bytes a second, as the system states it."""
    can_listen: bool
    """Whether a port could be opened."""
    bf16: Bf16 = "works"


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderFacts:
    """The folder that holds the runs, as one rank sees it."""

    rank: int
    path: str
    kind: str
    """File system."""
    error: str | None = None
    """Why it could not be written to."""
    sees_lead: bool = True
    """Whether what rank 0 wrote is there."""
    locks: bool = True
    """Whether a lock that rank 0 holds is honoured."""
    replaces: bool = True
    """Whether a file can be replaced in one step."""
    sync_seconds: float = 0.0
    """Until a small file is safe."""
    bytes_per_second: float = 0.0
    """When a file of some megabytes is written and made safe."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkup:
    """Everything that was looked at."""

    ranks: tuple[RankFacts, ...]
    folder: tuple[FolderFacts, ...]
    clocks: tuple[float, ...]
    """Seconds by which each rank's clock is ahead of rank 0's."""
    sweep: tuple[LinkPoint, ...]
    """All-reduces of growing size; empty for a lone rank."""
    backend: str

    @property
    def world_size(self) -> int:
        """How many ranks took part."""
        return len(self.ranks)

    def bus_bandwidth(self, point: LinkPoint) -> float:
        """Return the bytes a second that every rank sent in all-reduces of one size."""
        share = 2 * (self.world_size - 1) / self.world_size
        return share * point.bytes * point.in_flight / point.seconds
