"""The folder of a benchmark: its variants, the measurement of every run, and the file with both."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from paceline.core.errors import RunError
from paceline.core.units import plural
from paceline.records.folder import make_numbered
from paceline.records.old_keys import rename_old_keys
from paceline.records.writer import write_json

Scaling = Literal["strong", "weak"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A mode on a number of devices."""

    mode: str
    nodes: int = 1
    per_node: int = 1
    """Devices on each node: ranks, or threads of one process with dp on a CPU."""
    scaling: Scaling | None = None
    """Same global batch (strong) or same batch per device (weak); None for one device, where both are the same."""
    global_batch: int
    again: int = 0
    """Number of equal variants before this one: two equal ones show the noise."""

    @property
    def devices(self) -> int:
        """Devices over all nodes."""
        return self.nodes * self.per_node

    @property
    def name(self) -> str:
        """The short name: "single", "ddp 2", "ddp 2×2" on two nodes."""
        if self.devices == 1:
            name = "single"
        else:
            name = f"{self.mode} {self.nodes}×{self.per_node}" if self.nodes > 1 else f"{self.mode} {self.per_node}"
        return name + (f" #{self.again + 1}" if self.again else "")

    @property
    def label(self) -> str:
        """The name, with the kind of scaling if it has one."""
        return self.name if self.scaling is None else f"{self.name} ({self.scaling})"

    @property
    def words(self) -> str:
        """Its nodes and ranks in words."""
        if self.nodes > 1:
            return f"{plural(self.nodes, 'node')} with {plural(self.per_node, 'rank')} each"
        return plural(self.devices, "device" if self.mode == "dp" else "rank")

    @property
    def folder_name(self) -> str:
        """The name of its runs."""
        return "-".join([*([self.scaling] if self.scaling else []), *self.name.replace("×", "x").split()])


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """The measurements of one run of a variant after the warm-up."""

    variant: int
    round: int
    samples_per_s: float
    step_s: float
    train_loss: float
    """Mean over the measured steps."""
    test_loss: float | None = None
    test_top1: float | None = None
    test_samples: int = 0
    run: str = ""
    """Folder of the run, inside the benchmark's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """The results of a benchmark so far."""

    started: float
    settings: dict[str, Any]
    """The settings of all variants, as in config.toml."""
    steps: int
    cut: int
    """Steps at the start of every run that are not measured."""
    train_samples: int = 0
    repeats: int
    variants: list[Variant]
    measurements: list[Measurement] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    """Variants that could not run, by label, with the reason."""
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def complete_rounds(self) -> int:
        """Rounds in which every variant that can run did."""
        able = [index for index, one in enumerate(self.variants) if one.label not in self.failures]
        return min((sum(one.variant == index for one in self.measurements) for index in able), default=0)


@dataclass(frozen=True, slots=True)
class BenchFolder:
    """The paths of a benchmark's files."""

    path: Path

    @property
    def results(self) -> Path:
        """The file with variants and measurements."""
        return self.path / "bench.json"

    @property
    def runs(self) -> Path:
        """The runs that were measured."""
        return self.path / "runs"

    @property
    def log(self) -> Path:
        """The output of the runs."""
        return self.path / "log.txt"

    @property
    def is_bench(self) -> bool:
        """Tell whether a benchmark was ever started here."""
        return self.results.is_file()


def create_bench(runs_dir: Path, name: str) -> BenchFolder:
    """Create the next numbered folder for a benchmark."""
    return BenchFolder(make_numbered(runs_dir / f"bench-{name}"))


def find_bench(path: Path, runs_dir: Path) -> BenchFolder | None:
    """Return the benchmark of a path: its folder, its file, or the newest under a name; None if it is not one."""
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
    """Replace the results."""
    write_json(folder.results, asdict(bench) | {"summary": summary})


def read_bench(folder: BenchFolder) -> Bench:
    """Return the results of a benchmark."""
    try:
        values = rename_old_keys(json.loads(folder.results.read_text(encoding="utf-8")))
        values.pop("summary", None)
        if "measurements" not in values:  # the key of earlier versions
            values["measurements"] = values.pop("samples")
        values["variants"] = [Variant(**variant) for variant in values["variants"]]
        values["measurements"] = [Measurement(**rename_old_keys(one)) for one in values["measurements"]]
        values["environment"] = rename_old_keys(values.get("environment", {}))
        return Bench(**values)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as cause:
        raise RunError(f"{folder.results} cannot be read: {cause}", hint="run paceline bench again") from cause
