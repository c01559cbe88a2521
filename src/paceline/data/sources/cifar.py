"""CIFAR-10 and CIFAR-100: the python and the binary version, as archives or unpacked."""

import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from pickle import UnpicklingError
from typing import BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.core.errors import DataError
from paceline.core.units import count
from paceline.data.augment.pipeline import Augmentation
from paceline.data.in_memory import InMemory
from paceline.data.source_files import require_md5, unreadable_file
from paceline.data.sources.published import PublishedSet, Remote, load_arrays
from paceline.data.split import DataSet

_SITE = "https://www.cs.toronto.edu/~kriz"
PIXELS = 3 * 32 * 32


def _remote(file: str, md5: str | None, unpacks_to: str) -> Remote:
    return Remote(file=file, md5=md5, url=f"{_SITE}/{file}", unpacks_to=unpacks_to)


CIFAR10 = PublishedSet(
    name="cifar10",
    title="CIFAR-10: small photographs in ten classes",
    num_train=50_000,
    num_test=10_000,
    num_classes=10,
    image="32×32×3",
    download_bytes=170_498_071,
    remotes=(_remote("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a", "cifar-10-batches-py"),),
    alternatives=(_remote("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", "cifar-10-batches-bin"),),
    folders=("cifar-10-batches-py", "cifar-10-batches-bin"),
    contents={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
    page=f"{_SITE}/cifar.html",
)
CIFAR100 = PublishedSet(
    name="cifar100",
    title="CIFAR-100: small photographs in a hundred classes",
    num_train=50_000,
    num_test=10_000,
    num_classes=100,
    image="32×32×3",
    download_bytes=169_001_437,
    remotes=(_remote("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85", "cifar-100-python"),),
    alternatives=(_remote("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", "cifar-100-binary"),),
    folders=("cifar-100-python", "cifar-100-binary"),
    contents={"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
    page=f"{_SITE}/cifar.html",
)


class Arrays(NamedTuple):
    """Images (N×3×32×32) and labels as they were read."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """The file layout of one version of the set."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    names: str
    """The file with the names of the classes."""
    label: str
    """The key of the labels in the python version; its last letters name the label byte in the binary one."""
    label_bytes: int = 0
    """Bytes before the pixels of a record; 0 for the python version."""
    names_key: str = ""


TEN = tuple(f"data_batch_{index}" for index in range(1, 6))
LAYOUTS = {
    "cifar-10-batches-py": Layout(
        train=TEN, test=("test_batch",), names="batches.meta", label="labels", names_key="label_names"
    ),
    "cifar-10-batches-bin": Layout(
        train=tuple(f"{name}.bin" for name in TEN),
        test=("test_batch.bin",),
        names="batches.meta.txt",
        label="labels",
        label_bytes=1,
    ),
    "cifar-100-python": Layout(
        train=("train",), test=("test",), names="meta", label="fine_labels", names_key="fine_label_names"
    ),
    "cifar-100-binary": Layout(
        train=("train.bin",), test=("test.bin",), names="fine_label_names.txt", label="fine_labels", label_bytes=2
    ),
}

Opener = Callable[[str], BinaryIO]
"""Opens a file of the set by its name."""


def open_cifar10(data_dir: Path, augmentation: Augmentation | None = None) -> DataSet:
    """Read CIFAR-10 from the data folder."""
    return open_cifar(CIFAR10, data_dir, augmentation)


def open_cifar100(data_dir: Path, augmentation: Augmentation | None = None) -> DataSet:
    """Read CIFAR-100 (its fine labels) from the data folder."""
    return open_cifar(CIFAR100, data_dir, augmentation)


def open_cifar(published: PublishedSet, data_dir: Path, augmentation: Augmentation | None) -> DataSet:
    """Read a set in the layout of CIFAR-10 or CIFAR-100, unpacked or not."""
    found = published.find(data_dir)
    if found is None:
        raise published.missing(data_dir)
    splits, classes = _from_folder(published, found) if found.is_dir() else _from_archive(published, found)
    _check_size(published, splits, found)
    mean, std = _statistics(published)
    train, test = (
        InMemory(
            torch.from_numpy(arrays.images), torch.from_numpy(arrays.labels), mean=mean, std=std, augmentation=extra
        )
        for arrays, extra in zip(splits, (augmentation, None), strict=True)
    )
    return DataSet(train=train, test=test, classes=classes, image_shape=(3, 32, 32))


def _statistics(published: PublishedSet) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of the training pixels of each plane."""
    if published.num_classes == CIFAR100.num_classes:
        return (0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762)
    return (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def _from_folder(published: PublishedSet, folder: Path) -> tuple[tuple[Arrays, Arrays], tuple[str, ...]]:
    """Read an unpacked archive."""

    def opener(name: str) -> BinaryIO:
        return (folder / name).open("rb")

    layout = LAYOUTS[folder.name]
    splits = read_splits(layout, opener, folder)
    for name in (*layout.train, *layout.test):
        if name in published.contents:
            require_md5(folder / name, published.contents[name])
    return splits


def _from_archive(published: PublishedSet, archive: Path) -> tuple[tuple[Arrays, Arrays], tuple[str, ...]]:
    """Read an archive without unpacking it, once its md5 is right."""
    remote = next(remote for remote in (*published.remotes, *published.alternatives) if remote.file == archive.name)
    if remote.md5 is not None:
        require_md5(archive, remote.md5)
    try:
        with tarfile.open(archive) as tar:
            members = {PurePosixPath(member.name).name: member for member in tar if member.isfile()}

            def opener(name: str) -> BinaryIO:
                if name not in members:
                    raise FileNotFoundError(2, f"the archive has no file {name}")
                file = tar.extractfile(members[name])
                assert file is not None
                return BytesIO(file.read())

            return read_splits(LAYOUTS[remote.unpacks_to or ""], opener, archive)
    except (tarfile.TarError, EOFError) as cause:
        raise DataError(f"{archive} is damaged: {cause}", hint=f"fetch it again: rm {archive}") from cause


def read_splits(layout: Layout, opener: Opener, where: Path) -> tuple[tuple[Arrays, Arrays], tuple[str, ...]]:
    """Read training and test images and the names of the classes."""
    classes = _read_names(layout, opener, where)
    train, test = (
        _joined([_read_file(layout, opener, where / name, len(classes)) for name in names])
        for names in (layout.train, layout.test)
    )
    return (train, test), classes


def _joined(files: list[Arrays]) -> Arrays:
    return Arrays(np.concatenate([file.images for file in files]), np.concatenate([file.labels for file in files]))


def _read_file(layout: Layout, opener: Opener, path: Path, num_classes: int) -> Arrays:
    try:
        with opener(path.name) as file:
            arrays = _read_binary(layout, file, path) if layout.label_bytes else _read_pickle(layout, file, path)
    except OSError as cause:
        raise unreadable_file(path, cause) from cause
    if len(arrays.labels) != len(arrays.images):
        raise _damaged(path, f"it has {len(arrays.images)} images and {len(arrays.labels)} labels")
    if len(arrays.labels) == 0 or arrays.labels.min() < 0 or arrays.labels.max() >= num_classes:
        raise _damaged(path, f"its labels are not all between 0 and {num_classes - 1}")
    return arrays


def _read_binary(layout: Layout, file: BinaryIO, path: Path) -> Arrays:
    data = np.frombuffer(file.read(), np.uint8)
    record = layout.label_bytes + PIXELS
    if len(data) % record:
        raise _damaged(path, f"it has {count(len(data))} bytes, which is not a multiple of {record}")
    rows = data.reshape(-1, record)
    pixels = np.ascontiguousarray(rows[:, layout.label_bytes :]).reshape(-1, 3, 32, 32)
    return Arrays(pixels, rows[:, layout.label_bytes - 1].astype(np.int64))


def _read_pickle(layout: Layout, file: BinaryIO, path: Path) -> Arrays:
    content = _unpickled(file, path)
    try:
        pixels = np.ascontiguousarray(content["data"], np.uint8).reshape(-1, 3, 32, 32)
        return Arrays(pixels, np.array(content[layout.label], np.int64))
    except (KeyError, ValueError, TypeError) as cause:
        raise _damaged(path, f"{type(cause).__name__}: {cause}") from cause


def _unpickled(file: BinaryIO, path: Path) -> dict:
    try:
        return load_arrays(file)
    except (UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError) as cause:
        raise _damaged(path, str(cause) or type(cause).__name__) from cause


def _read_names(layout: Layout, opener: Opener, where: Path) -> tuple[str, ...]:
    path = where / layout.names
    try:
        with opener(layout.names) as file:
            if not layout.names_key:
                return tuple(file.read().decode().split())
            names = _unpickled(file, path).get(layout.names_key, [])
    except OSError as cause:
        raise unreadable_file(path, cause) from cause
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)


def _check_size(published: PublishedSet, splits: tuple[Arrays, Arrays], found: Path) -> None:
    for arrays, expected, what in zip(
        splits, (published.num_train, published.num_test), ("training", "test"), strict=True
    ):
        if len(arrays.labels) != expected:
            raise DataError(
                f"{found} has {count(len(arrays.labels))} {what} images, {published.name} has {count(expected)}",
                hint=f"a file is cut short: remove it, then run paceline data fetch {published.name}",
            )


def _damaged(path: Path, problem: str) -> DataError:
    return DataError(f"{path} is damaged: {problem}", hint="remove its folder and fetch the data set again")
