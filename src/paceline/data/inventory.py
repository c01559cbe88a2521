"""The published data sets, and which of them are on this machine."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from paceline.core.errors import DataError, suggestion
from paceline.data.sources.cifar import CIFAR10, CIFAR100
from paceline.data.sources.cinic import CINIC10, find_cinic10
from paceline.data.sources.fashion import FASHION, find_fashion_mnist
from paceline.data.sources.imagenet import IMAGENET, find_imagenet
from paceline.data.sources.published import PublishedSet


class InventoryItem(NamedTuple):
    """A published set and where it was found."""

    published: PublishedSet
    expected: Path
    """The folder where its files belong."""
    found: Path | None


_FIND: tuple[tuple[PublishedSet, Callable[[Path], Path | None]], ...] = (
    (CIFAR10, CIFAR10.find),
    (CIFAR100, CIFAR100.find),
    (CINIC10, find_cinic10),
    (FASHION, find_fashion_mnist),
    (IMAGENET, find_imagenet),
)


def list_published(data_dir: Path) -> list[InventoryItem]:
    """Return every published set, found or not."""
    return [InventoryItem(published, published.home(data_dir), find(data_dir)) for published, find in _FIND]


def find_ready(published: PublishedSet, data_dir: Path) -> Path | None:
    """Return the folder of a set that is ready for use; None if fetching would download, unpack or check a file."""
    found = next(find(data_dir) for other, find in _FIND if other is published)
    if found is None or (found.is_file() and found.name not in {remote.file for remote in published.alternatives}):
        return None
    loose = any(remote.unpacks_to is None and remote.url is not None for remote in published.remotes)
    return None if loose and found == published.home(data_dir) else found


def published_set(name: str) -> PublishedSet:
    """Return the published set with this name."""
    sets = {published.name: published for published, _ in _FIND}
    if name not in sets:
        raise DataError(f"there is no published set {name}", hint=suggestion(name, sets))
    return sets[name]
