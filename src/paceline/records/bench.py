"""A benchmark's folder: who took part, what every run measured, and the one file that holds both."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from paceline.core.errors import RunError
from paceline.core.units import plural
from paceline.records.folder import make_numbered
from paceline.records.writer import write_json

Scaling = Literal["strong", "weak"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """One way to do the work."""

    mode: str
    nodes: int = 1
    per_node: int = 1
    """Devices on each node: ranks, or threads of one process with dp on a CPU."""
    scaling: Scaling | None = None
    """Same global batch (strong) or same batch per device (weak); None for one device, where both are the same."""
    global_batch: int
    again: int = 0
    """How many contenders before this one are the same: two equal ones show what the noise can do."""

    @property
    def devices(self) -> int:
        """Devices over all nodes."""
        return self.nodes * self.per_node

    @property
    def name(self) -> str:
        """What people call it: "single", "ddp 2", "ddp 2×2" on two nodes."""
        if self.devices == 1:
            name = "single"
        else:
            name = f"{self.mode} {self.nodes}×{self.per_node}" if self.nodes > 1 else f"{self.mode} {self.per_node}"
        return name + (f" #{self.again + 1}" if self.again else "")

    @property
    def label(self) -> str:
        """The name, and the kind of scaling where that makes a difference."""
        return self.name if self.scaling is None else f"{self.name} ({self.scaling})"

    @property
    def words(self) -> str:
        """Where it runs, in words."""
        if self.nodes > 1:
            return f"{plural(self.nodes, 'node')} with {plural(self.per_node, 'rank')} each"
        return plural(self.devices, "device" if self.mode == "dp" else "rank")

    @property
    def folder_name(self) -> str:
        """The name of its runs."""
        return "-".join([*([self.scaling] if self.scaling else []), *self.name.replace("×", "x").split()])


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """What one run of one contender measured after the warm-up."""

    contender: int
    round: int
    images_per_s: float
    step_s: float
    train_loss: float
    """Mean over the measured steps."""
    test_loss: float | None = None
    test_top1: float | None = None
    test_images: int = 0
    run: str = ""
    """Folder of the run, inside the benchmark's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """A benchmark as far as it has come."""

    started: float
    settings: dict[str, Any]
    """What every contender shares, as in config.toml."""
    steps: int
    cut: int
    """Steps at the beginning of every run that are not measured."""
    train_images: int = 0
    repeats: int
    contenders: list[Contender]
    samples: list[Sample] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    """Contenders that could not run, by label, and why."""
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def complete_rounds(self) -> int:
        """Rounds in which everybody who can run did."""
        able = [index for index, one in enumerate(self.contenders) if one.label not in self.failures]
        return min((sum(sample.contender == index for sample in self.samples) for index in able), default=0)


@dataclass(frozen=True, slots=True)
class BenchFolder:
    """Where the parts of a benchmark are."""

    path: Path

    @property
    def results(self) -> Path:
        """Contenders and samples."""
        return self.path / "bench.json"

    @property
    def runs(self) -> Path:
        """The runs that were measured."""
        return self.path / "runs"

    @property
    def log(self) -> Path:
        """What the runs printed."""
        return self.path / "log.txt"

    @property
    def is_bench(self) -> bool:
        """Tell whether a benchmark was ever started here."""
        return self.results.is_file()


def create_bench(runs_dir: Path, name: str) -> BenchFolder:
    """Make the next numbered folder for a benchmark."""
    return BenchFolder(make_numbered(runs_dir / f"bench-{name}"))


def find_bench(path: Path, runs_dir: Path) -> BenchFolder | None:
    """Return the benchmark that a user means: its folder, its file, or the newest under a name; None if it is none."""
    if path.name == "bench.json" and path.is_file():
        return BenchFolder(path.parent)
    for candidate in (path, runs_dir / path):
        if BenchFolder(candidate).is_bench:
            return BenchFolder(candidate)
        inner = [BenchFolder(found.parent) for found in candidate.glob("*/bench.json")]
        if inner:
            return max(inner, key=lambda folder: (len(folder.path.name), folder.path.name))
    return None


def write_bench(folder: BenchFolder, bench: Bench, summary: Any = None) -> None:
    """Replace the results by newer ones."""
    write_json(folder.results, asdict(bench) | {"summary": summary})


def read_bench(folder: BenchFolder) -> Bench:
    """Return the results of a benchmark."""
    try:
        values = json.loads(folder.results.read_text(encoding="utf-8"))
        values.pop("summary", None)
        values["contenders"] = [Contender(**contender) for contender in values["contenders"]]
        values["samples"] = [Sample(**sample) for sample in values["samples"]]
        return Bench(**values)
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise RunError(f"{folder.results} cannot be read: {cause}", hint="run paceline bench again") from cause
