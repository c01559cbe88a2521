"""What is known about a published data set: how large it is, which files it consists of, where they come from."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from paceline.core.errors import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class Remote:
    """A published file."""

    file: str
    md5: str | None
    url: str | None
    """Where to download it; None where the owner asks for a registration first."""
    unpacks_to: str | None = None
    """The folder that appears when it is unpacked; None for a file that is used as it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """A data set that can be asked for by name."""

    name: str
    title: str
    num_train: int
    num_test: int
    num_classes: int
    image: str
    """The size of an image, for people: 32×32×3, or "varies"."""
    download_bytes: int
    remotes: tuple[Remote, ...] = ()
    """What `paceline data fetch` gets: all of them."""
    alternatives: tuple[Remote, ...] = ()
    """Other files that hold the same images."""
    folders: tuple[str, ...] = ()
    """Names of unpacked folders that are recognised."""
    contents: Mapping[str, str] = field(default_factory=dict)
    """The md5 of files in the unpacked folders, by name."""
    page: str = ""
    """Where people read about it."""

    def home(self, data_dir: Path) -> Path:
        """Return the folder that its files are expected in."""
        return data_dir / self.name

    def places(self, data_dir: Path) -> Iterator[Path]:
        """Yield the folders to look in: its own, then the data folder itself."""
        yield self.home(data_dir)
        yield data_dir

    def find(self, data_dir: Path) -> Path | None:
        """Return the unpacked folder or the file that holds the set, folders first; None when there is nothing."""
        archives = [remote.file for remote in (*self.remotes, *self.alternatives)]
        for names in (self.folders, archives):
            found = first_existing(place / name for place in self.places(data_dir) for name in names)
            if found is not None:
                return found
        return None

    def missing(self, data_dir: Path) -> DataError:
        """Return the error that says what to fetch, or what to put where."""
        if any(remote.url is None for remote in self.remotes) or not self.remotes:
            wanted = ", ".join(describe(remote) for remote in self.remotes)
            hint = f"download {wanted} from {self.page} and put it into {self.home(data_dir)}"
        else:
            hint = f"paceline data fetch {self.name} --data-dir {data_dir}; offline: {self.by_hand(data_dir)}"
        return DataError(f"{self.name} is not in {data_dir}", hint=hint)

    def by_hand(self, data_dir: Path) -> str:
        """Return which files to put where on a machine without a network."""
        return f"put {', '.join(describe(remote) for remote in self.remotes)} into {self.home(data_dir)}"


def describe(remote: Remote) -> str:
    """Return a file's name with its md5, when it has one."""
    return remote.file if remote.md5 is None else f"{remote.file} (md5 {remote.md5})"


def first_existing(paths: Iterable[Path]) -> Path | None:
    """Return the first of the paths that exists."""
    return next((path for path in paths if path.exists()), None)
