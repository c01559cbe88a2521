"""The run folder: the only module that knows the names of the files in it (tests/test_layout.py checks that)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from paceline.core.config import Config
from paceline.core.errors import RunError, suggestion

REPLACED = "replaced"
"""Part of the name of a checkpoint that was moved aside for a new one of the same step."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths of one run's files."""

    path: Path
    token: str | None = field(default=None, compare=False)
    """The token of the attempt that opened the folder for writing, see `records.attempt`."""

    @property
    def attempt(self) -> Path:
        """The process and token of the newest attempt to train this run."""
        return self.path / "attempt.json"

    @property
    def config(self) -> Path:
        """The resolved settings: passed back with --config, they give the same run again."""
        return self.path / "config.toml"

    @property
    def environment(self) -> Path:
        """Versions, devices, host, git commit: one entry for each time the run was started."""
        return self.path / "environment.json"

    @property
    def audit(self) -> Path:
        """What `paceline audit --run` found in the script of an observed run."""
        return self.path / "audit.json"

    @property
    def export(self) -> Path:
        """The exported model."""
        return self.path / "export"

    @property
    def model_table(self) -> Path:
        """The layer table."""
        return self.path / "model.txt"

    def code(self, path: str, sha256: str) -> Path:
        """The copy of a version of one of the user's own files."""
        return self.path / "code" / f"{Path(path).stem}-{sha256[:8]}{Path(path).suffix}"

    @property
    def log(self) -> Path:
        """The terminal output, as plain text."""
        return self.path / "log.txt"

    @property
    def metrics(self) -> Path:
        """One JSON object per record."""
        return self.path / "metrics.jsonl"

    @property
    def phases(self) -> Path:
        """The phases of every rank: one JSON object per interval."""
        return self.path / "phases.jsonl"

    @property
    def mirror(self) -> Path:
        """Where the run is copied to in an object store."""
        return self.path / "mirror.json"

    @property
    def profile(self) -> Path:
        """The profile from `paceline profile`."""
        return self.path / "profile.json"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        """The checkpoint of a step."""
        return self.checkpoints / checkpoint_name(step)

    def saved_steps(self) -> list[int]:
        """The steps that have a checkpoint, in order."""
        return [checkpoint_step(path) for path in list_checkpoints(self.checkpoints)]

    @property
    def report(self) -> Path:
        """The report from `paceline report`."""
        return self.path / "report.html"

    @property
    def tensorboard(self) -> Path:
        """The log folder for TensorBoard."""
        return self.path / "tensorboard"

    @property
    def wandb_id(self) -> Path:
        """The W&B id under which a resumed run continues."""
        return self.path / "wandb-id.txt"

    def rank(self, rank: int) -> Path:
        """The state file of one rank."""
        return self.path / "ranks" / f"rank-{rank:03d}.json"

    def trace(self, rank: int) -> Path:
        """The torch.profiler trace of a rank."""
        return self.path / "traces" / f"rank-{rank:03d}.json.gz"

    def rank_log(self, rank: int) -> Path:
        """The output of a rank other than the lead."""
        return self.rank(rank).with_suffix(".log")

    def rank_stack(self, rank: int) -> Path:
        """The Python stacks of a rank, written when another rank has waited for it in vain."""
        return self.rank(rank).with_suffix(".stack")

    def rank_collectives(self, rank: int) -> Path:
        """The last collectives of a rank, written when it has waited for another in vain."""
        return self.rank(rank).with_suffix(".collectives")

    def rank_tensors(self, rank: int) -> Path:
        """A rank's version of the tensors that differ between ranks."""
        return self.rank(rank).with_suffix(".pt")

    @property
    def journals(self) -> Path:
        """The journals of the processes of an observed command, while it runs."""
        return self.path / "journals"

    @property
    def name(self) -> str:
        """The name and number of the run."""
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def is_run(self) -> bool:
        """Tell whether a run was ever started here."""
        return self.config.is_file()


def checkpoint_name(step: int) -> str:
    """Return the name of the folder of a step's checkpoint."""
    return f"step-{step:08d}"


def checkpoint_step(path: Path) -> int:
    """Return the step of a checkpoint, from its name."""
    return int(path.stem.removeprefix("step-"))


def is_checkpoint_name(name: str) -> bool:
    """Tell whether a name is that of a checkpoint: a folder, or a file in runs of earlier versions."""
    return re.fullmatch(r"step-\d+(\.pt)?", name) is not None


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder, the oldest first."""
    found = [path for path in folder.glob("step-*") if is_checkpoint_name(path.name)]
    return sorted(found, key=lambda path: (checkpoint_step(path), path.is_dir()))


def leftover_checkpoints(folder: Path) -> list[Path]:
    """Return what a killed process left of checkpoints that it wrote or removed."""
    return [path for path in folder.glob(".step-*.partial") if path.is_dir()]


def replaced_checkpoints(folder: Path) -> list[tuple[Path, int]]:
    """Return the checkpoints that were moved aside for a new one of the same step, with that step."""
    found = [path for path in leftover_checkpoints(folder) if path.name.endswith(f".{REPLACED}.partial")]
    return [(path, int(path.name.split(".")[1].removeprefix("step-"))) for path in found]


def create_run(config: Config) -> RunFolder:
    """Create the next numbered folder under the run's name. Only the lead rank calls it."""
    return make_inner(RunFolder(make_numbered(config.runs_dir / config.run_name)))


def make_inner(folder: RunFolder) -> RunFolder:
    """Create the folders in a run folder."""
    for inner in (folder.checkpoints, folder.rank(0).parent):
        inner.mkdir(exist_ok=True)
    return folder


def name_lock(parent: Path) -> Path:
    """The file that is locked while a process chooses one of the runs below a name."""
    return parent / ".lock"


def make_numbered(parent: Path) -> Path:
    """Create the next numbered folder below another."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        taken = [int(path.name) for path in parent.iterdir() if path.name.isdigit()]
        for number in count(max(taken, default=0) + 1):
            folder = parent / f"{number:03d}"
            try:
                folder.mkdir()
            except FileExistsError:
                continue  # another run was started at the same moment
            return folder
    except OSError as cause:
        raise RunError(
            f"cannot create a run folder in {parent}: {cause.strerror}", hint="choose another folder with --runs-dir"
        ) from cause
    raise AssertionError("count() never ends")


def find_run(path: Path, runs_dir: Path) -> RunFolder:
    """Return the run of a path or name: a run folder, or the newest run under a name."""
    for candidate in (path, runs_dir / path):
        if RunFolder(candidate).is_run:
            return RunFolder(candidate)
        inner = list_runs_below(candidate)
        if inner:
            return newest_run(inner)
    if not path.exists() and runs_dir.is_dir():
        names = [entry.name for entry in runs_dir.iterdir() if list_runs_below(entry) or RunFolder(entry).is_run]
        if names:
            raise RunError(f"there is no run {path}", hint=suggestion(path.name, names))
    problem = "is not a run: it has no config.toml" if path.exists() else "does not exist"
    run = RunFolder(path.parent.parent)
    if is_checkpoint_name(path.name) and run.is_run:
        hint = f"give the run, and --checkpoint {path.stem}: paceline eval {run.path} --checkpoint {path.stem}"
        raise RunError(f"{path} is a checkpoint, not a run", hint=hint)
    raise RunError(f"{path} {problem}", hint="to list the runs: paceline runs")


def newest_run(runs: Sequence[RunFolder]) -> RunFolder:
    """Return the run with the largest number."""
    return max(runs, key=lambda folder: (len(folder.path.name), folder.path.name))  # 1000 comes after 999


def index_of_runs(runs_dir: Path) -> Path:
    """The index of all runs below a folder."""
    return runs_dir / ".runs.json"


def list_runs_below(parent: Path) -> list[RunFolder]:
    """Return the runs directly below a folder."""
    if not parent.is_dir():
        return []
    folders = [RunFolder(path) for path in parent.iterdir()]
    return [folder for folder in folders if folder.is_run]
