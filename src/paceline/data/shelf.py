"""The published sets that Paceline knows by name, and which of them are on this machine."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from paceline.core.errors import DataError
from paceline.core.names import suggestion
from paceline.data.sources.cifar import CIFAR10, CIFAR100
from paceline.data.sources.cinic import CINIC10, find_cinic10
from paceline.data.sources.fashion import FASHION, find_fashion_mnist
from paceline.data.sources.imagenet import IMAGENET, find_imagenet
from paceline.data.sources.known import Known


class Shelved(NamedTuple):
    """A published set and where it was found."""

    known: Known
    expected: Path
    """The folder that its files belong into."""
    found: Path | None


_FIND: tuple[tuple[Known, Callable[[Path], Path | None]], ...] = (
    (CIFAR10, CIFAR10.find),
    (CIFAR100, CIFAR100.find),
    (CINIC10, find_cinic10),
    (FASHION, find_fashion_mnist),
    (IMAGENET, find_imagenet),
)


def shelf(data_dir: Path) -> list[Shelved]:
    """Return every published set, there or not."""
    return [Shelved(known, known.home(data_dir), find(data_dir)) for known, find in _FIND]


def is_there(known: Known, data_dir: Path) -> Path | None:
    """Return where a set lies ready for use; None when fetching it has something to download, unpack or check."""
    found = next(find(data_dir) for other, find in _FIND if other is known)
    if found is None or (found.is_file() and found.name not in {remote.file for remote in known.alternatives}):
        return None
    loose = any(remote.unpacks_to is None and remote.url is not None for remote in known.remotes)
    return None if loose and found == known.home(data_dir) else found


def known_set(name: str) -> Known:
    """Return what is known about a published set."""
    sets = {known.name: known for known, _ in _FIND}
    if name not in sets:
        raise DataError(f"there is no published set {name}", hint=suggestion(name, sets))
    return sets[name]
