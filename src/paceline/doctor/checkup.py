"""The measurements of `paceline doctor`: facts about every rank, the shared folder, and the links."""

from dataclasses import dataclass

from paceline.parallel.speed_check import Speeds
from paceline.records.environment import Bf16
from paceline.records.profile import LinkPoint


@dataclass(frozen=True, kw_only=True, slots=True)
class RankCheck:
    """One rank and the host it is on."""

    rank: int
    host: str
    device: str
    versions: dict[str, str]
    """Versions of Python, Paceline and torch."""
    backends: tuple[str, ...]
    cores: int
    """Cores that this rank may use."""
    threads: int
    load: float
    """Load average of the last minute."""
    gpus_there: int
    """GPUs known to the driver."""
    gpus_seen: int
    """GPUs that torch can use."""
    open_files: int
    """Open files allowed per process."""
    shared_memory: int
    """Bytes free in /dev/shm, which data workers use."""
    interface: str | None
    """Network interface to the other ranks; None if all are on one host."""
    line_rate: float | None
    """Nominal speed of that interface in bytes per second, from the system."""
    can_listen: bool
    """Whether a port could be opened."""
    bf16: Bf16 = "works"


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderCheck:
    """The folder of runs, as seen by one rank."""

    rank: int
    path: str
    kind: str
    """File system."""
    error: str | None = None
    """The error on writing to it."""
    sees_lead: bool = True
    """Whether rank 0's file is visible."""
    locks: bool = True
    """Whether locks of rank 0 are respected."""
    replaces: bool = True
    """Whether a file can be replaced atomically."""
    sync_seconds: float = 0.0
    """Seconds to sync a small file."""
    bytes_per_second: float = 0.0
    """Bytes per second for writing and syncing a file of a few MB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkup:
    """Everything that was checked."""

    ranks: tuple[RankCheck, ...]
    folder: tuple[FolderCheck, ...]
    clocks: tuple[float, ...]
    """Offset in seconds of each rank's clock from rank 0's."""
    sweep: tuple[LinkPoint, ...]
    """All-reduces of growing size; empty for a lone rank."""
    backend: str
    speeds: Speeds
    """Compute and memory of every rank, and the links in pairs."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def bus_bandwidth(self, point: LinkPoint) -> float:
        """Return the bytes per second that every rank sent in all-reduces of one size."""
        share = 2 * (self.world_size - 1) / self.world_size
        return share * point.bytes * point.in_flight / point.seconds
