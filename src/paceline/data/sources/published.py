"""Published data sets: their sizes, files and sources, and reading pickled ones safely."""

import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy._core.multiarray import _reconstruct  # pyright: ignore[reportAttributeAccessIssue]

from paceline.core.errors import DataError

_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Remote:
    """A published file."""

    file: str
    md5: str | None
    url: str | None
    """Where to download it; None if the owner requires registration."""
    unpacks_to: str | None = None
    """The folder that unpacking creates; None for a file that is used as it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedSet:
    """A published data set."""

    name: str
    title: str
    num_train: int
    num_test: int
    num_classes: int
    image: str
    """The size of an image, for display: 32×32×3, or "varies"."""
    download_bytes: int
    remotes: tuple[Remote, ...] = ()
    """What `paceline data fetch` downloads: all of them."""
    alternatives: tuple[Remote, ...] = ()
    """Other files with the same images."""
    folders: tuple[str, ...] = ()
    """Names of unpacked folders that are recognised."""
    contents: Mapping[str, str] = field(default_factory=dict)
    """The md5 of files in the unpacked folders, by name."""
    page: str = ""
    """Its web page."""

    def home(self, data_dir: Path) -> Path:
        """Return the folder where its files are expected."""
        return data_dir / self.name

    def search_folders(self, data_dir: Path) -> Iterator[Path]:
        """Yield the folders to search: its own, then the data folder itself."""
        yield self.home(data_dir)
        yield data_dir

    def find(self, data_dir: Path) -> Path | None:
        """Return the unpacked folder or the file with the set, folders first; None if there is neither."""
        archives = [remote.file for remote in (*self.remotes, *self.alternatives)]
        for names in (self.folders, archives):
            found = first_existing(folder / name for folder in self.search_folders(data_dir) for name in names)
            if found is not None:
                return found
        return None

    def missing(self, data_dir: Path) -> DataError:
        """Return the error with the command to fetch it, or the files to download by hand."""
        if any(remote.url is None for remote in self.remotes) or not self.remotes:
            wanted = ", ".join(describe(remote) for remote in self.remotes)
            hint = f"download {wanted} from {self.page} and put it into {self.home(data_dir)}"
        else:
            hint = f"paceline data fetch {self.name} --data-dir {data_dir}; offline: {self.by_hand(data_dir)}"
        return DataError(f"{self.name} is not in {data_dir}", hint=hint)

    def by_hand(self, data_dir: Path) -> str:
        """Return the hint which files to put where on a machine without a network."""
        return f"put {', '.join(describe(remote) for remote in self.remotes)} into {self.home(data_dir)}"


def describe(remote: Remote) -> str:
    """Return a file's name with its md5, when it has one."""
    return remote.file if remote.md5 is None else f"{remote.file} (md5 {remote.md5})"


def first_existing(paths: Iterable[Path]) -> Path | None:
    """Return the first of the paths that exists."""
    return next((path for path in paths if path.exists()), None)


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that allows arrays, and no other class or function."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the allowed class of this name."""
        if (module, name) == ("_codecs", "encode"):
            return _latin1
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it would run {module}.{name}") from None


def load_arrays(file: BinaryIO) -> dict[str, Any]:
    """Return the pickled dictionary with its keys as text; raises UnpicklingError for anything but plain data."""
    loaded = _ArraysOnly(file, encoding="bytes").load()
    if not isinstance(loaded, dict):
        raise pickle.UnpicklingError(f"it holds a {type(loaded).__name__}, not a dictionary")
    return {key.decode() if isinstance(key, bytes) else str(key): value for key, value in loaded.items()}


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """Bytes in pickles of newer Pythons with an old protocol are text to be encoded."""
    return text.encode(encoding)
