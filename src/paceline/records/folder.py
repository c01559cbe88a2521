"""The run folder. The only module that knows what things inside it are called."""

from dataclasses import dataclass
from itertools import count
from pathlib import Path

from paceline.core.config import Config
from paceline.core.errors import RunError
from paceline.core.names import suggestion


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where the parts of one run are."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved settings: passed back with --config, they give the same run again."""
        return self.path / "config.toml"

    @property
    def environment(self) -> Path:
        """Versions, devices, host, git commit: one entry for each time the run was started."""
        return self.path / "environment.json"

    @property
    def model_table(self) -> Path:
        """The layer table."""
        return self.path / "model.txt"

    def code(self, path: str, sha256: str) -> Path:
        """The copy of a version of one of the user's own files."""
        return self.path / "code" / f"{Path(path).stem}-{sha256[:8]}{Path(path).suffix}"

    @property
    def log(self) -> Path:
        """What the terminal showed, as plain text."""
        return self.path / "log.txt"

    @property
    def metrics(self) -> Path:
        """One JSON object per record."""
        return self.path / "metrics.jsonl"

    @property
    def phases(self) -> Path:
        """Where the time of every rank went: one JSON object per interval."""
        return self.path / "phases.jsonl"

    @property
    def profile(self) -> Path:
        """What `paceline profile` measured."""
        return self.path / "profile.json"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        """The folder to point TensorBoard at."""
        return self.path / "tensorboard"

    @property
    def wandb_id(self) -> Path:
        """The W&B id under which a resumed run continues."""
        return self.path / "wandb-id.txt"

    def rank(self, rank: int) -> Path:
        """The state file of one rank."""
        return self.path / "ranks" / f"rank-{rank:03d}.json"

    def trace(self, rank: int) -> Path:
        """What torch.profiler saw on a rank."""
        return self.path / "traces" / f"rank-{rank:03d}.json.gz"

    def rank_log(self, rank: int) -> Path:
        """What a rank other than the lead printed."""
        return self.rank(rank).with_suffix(".log")

    def rank_tensors(self, rank: int) -> Path:
        """A rank's version of the tensors in which the ranks differ, where they do."""
        return self.rank(rank).with_suffix(".pt")

    @property
    def name(self) -> str:
        """The run as people call it: name and number."""
        return f"{self.path.parent.name}/{self.path.name}"

    @property
    def is_run(self) -> bool:
        """Tell whether a run was ever started here."""
        return self.config.is_file()


def create_run(config: Config) -> RunFolder:
    """Make the next numbered folder under the run's name. Only the lead rank calls it."""
    folder = RunFolder(make_numbered(config.runs_dir / config.run_name))
    for inner in (folder.checkpoints, folder.rank(0).parent):
        inner.mkdir()
    return folder


def make_numbered(parent: Path) -> Path:
    """Make the next numbered folder below another."""
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
            f"cannot make a run folder in {parent}: {cause.strerror}", hint="choose another place with --runs-dir"
        ) from cause
    raise AssertionError("count() never ends")


def find_run(path: Path, runs_dir: Path) -> RunFolder:
    """Return the run that a user means: a run folder, or the newest run under a name."""
    for candidate in (path, runs_dir / path):
        if RunFolder(candidate).is_run:
            return RunFolder(candidate)
        inner = list_runs_below(candidate)
        if inner:
            return max(inner, key=lambda folder: (len(folder.path.name), folder.path.name))  # 1000 comes after 999
    if not path.exists() and runs_dir.is_dir():
        names = [entry.name for entry in runs_dir.iterdir() if entry.is_dir()]
        if names:
            raise RunError(f"there is no run {path}", hint=suggestion(path.name, names))
    problem = "is not a run: it has no config.toml" if path.exists() else "does not exist"
    raise RunError(f"{path} {problem}", hint="paceline runs lists the runs there are")


def list_runs_below(parent: Path) -> list[RunFolder]:
    """Return the runs directly below a folder."""
    if not parent.is_dir():
        return []
    folders = [RunFolder(path) for path in parent.iterdir()]
    return [folder for folder in folders if folder.is_run]
