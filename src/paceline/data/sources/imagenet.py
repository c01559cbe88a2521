"""ImageNet (ILSVRC 2012): the usual train and val folders, or the two official tars read where they lie."""

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.core.errors import DataError
from paceline.data.augment.pipeline import Augmentation
from paceline.data.checksum import unreadable
from paceline.data.decode import BadImageError
from paceline.data.decoded import Decoded
from paceline.data.sources.folder import ENDINGS, ImageOptions, open_folder
from paceline.data.sources.imagenet_labels import validation_labels
from paceline.data.sources.known import Known, Remote, first_existing
from paceline.data.split import DataSet

TRAIN_TAR, VAL_TAR = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
IMAGENET = Known(
    name="imagenet",
    title="ImageNet (ILSVRC 2012): photographs of a thousand kinds of things",
    num_train=1_281_167,
    num_test=50_000,
    num_classes=1000,
    image="varies",
    download_bytes=154_642_401_280,
    remotes=(
        Remote(file=TRAIN_TAR, md5="1d675b47d978889d74fa0da5fadfb00e", url=None),
        Remote(file=VAL_TAR, md5="29b22e2961454d5413ddabcf34fc5622", url=None),
    ),
    page="https://image-net.org/download-images (after registration)",
)


def open_imagenet(data_dir: Path, options: ImageOptions, augmentation: Augmentation | None = None) -> DataSet:
    """Open ImageNet's class folders, or else its tars."""
    root = find_imagenet(data_dir)
    if root is None:
        raise IMAGENET.missing(data_dir)
    if (root / "train").is_dir():
        return open_folder(root, options, augmentation)
    return _open_tars(root, options, augmentation)


def find_imagenet(data_dir: Path) -> Path | None:
    """Return the folder that has train and val, or the two tars; None when there is neither."""
    places = [*IMAGENET.places(data_dir), data_dir / "ILSVRC2012"]
    found = first_existing(place / name for name in ("train", TRAIN_TAR) for place in places)
    if found is None:
        return None
    complete = (found.parent / "val").is_dir() if found.is_dir() else (found.parent / VAL_TAR).exists()
    return found.parent if complete else None


class Member(NamedTuple):
    """An image inside a tar."""

    name: str
    start: int
    length: int


class TarImages:
    """Images inside an uncompressed tar, read from where they lie."""

    def __init__(self, path: Path, members: list[Member]) -> None:
        self._path = path
        self._starts: NDArray[np.int64] = np.array([member.start for member in members], np.int64)
        self._lengths: NDArray[np.int64] = np.array([member.length for member in members], np.int64)
        self._names = np.array([member.name for member in members], dtype=np.bytes_)

    def __len__(self) -> int:
        return len(self._starts)

    def name(self, number: int) -> str:
        """Return the tar and the name inside it."""
        return f"{self._path}:{self._names[number].decode()}"

    def read(self, number: int) -> bytes:
        """Return the bytes of an image."""
        length = int(self._lengths[number])
        try:
            with self._path.open("rb", buffering=0) as file:
                data = os.pread(file.fileno(), length, int(self._starts[number]))
        except OSError as cause:
            raise BadImageError(cause.strerror or str(cause)) from cause
        if len(data) < length:
            raise BadImageError("the tar ends before it")
        return data


def _open_tars(root: Path, options: ImageOptions, augmentation: Augmentation | None) -> DataSet:
    train_members = list(list_nested(root / TRAIN_TAR))
    test_members = sorted(list_tar(root / VAL_TAR))
    if not train_members or not test_members:
        raise DataError(
            f"{root / TRAIN_TAR} or {VAL_TAR} has no images", hint=f"compare its md5: {IMAGENET.by_hand(root)}"
        )
    classes = tuple(sorted({class_of(member) for member in train_members}))
    numbers = {name: number for number, name in enumerate(classes)}
    labels = validation_labels(root, [member.name for member in test_members], VAL_TAR)
    strange = sorted(set(labels) - set(numbers))
    if strange:
        raise DataError(
            f"classes {', '.join(strange[:5])} are tested but not in {TRAIN_TAR}", hint="is the tar complete?"
        )
    parts = (
        (TRAIN_TAR, train_members, [class_of(member) for member in train_members], augmentation),
        (VAL_TAR, test_members, labels, None),
    )
    train, test = (
        Decoded(
            TarImages(root / tar, members),
            torch.tensor([numbers[name] for name in names]),
            size=options.size,
            mean=options.mean,
            std=options.std,
            augmentation=extra,
            bad_images=options.bad_images,
        )
        for tar, members, names, extra in parts
    )
    return DataSet(train=train, test=test, classes=classes, image_shape=(3, options.size, options.size))


def class_of(member: Member) -> str:
    """Return the class in the name of a training image: n01440764/n01440764_18.JPEG."""
    return member.name.partition("/")[0]


def list_tar(path: Path, file: BinaryIO | None = None) -> Iterator[Member]:
    """List the images of a tar without reading them."""
    try:
        with tarfile.open(path, "r:", fileobj=file) as tar:
            for member in tar:
                if member.isfile() and member.name.lower().endswith(ENDINGS):
                    yield Member(member.name.rsplit("/", 1)[-1], member.offset_data, member.size)
    except tarfile.TarError as cause:
        raise DataError(f"{path} is damaged: {cause}", hint="compare its md5 with the published one") from cause
    except OSError as cause:
        raise unreadable(path, cause) from cause


def list_nested(path: Path) -> Iterator[Member]:
    """List the images of a tar of tars, one per class."""
    try:
        with tarfile.open(path, "r:") as outer:
            for inner in outer:
                file = outer.extractfile(inner)
                if file is None or not inner.name.endswith(".tar"):
                    continue
                name = inner.name.removesuffix(".tar")
                for member in list_tar(path, file):  # pyright: ignore[reportArgumentType] - it is read like a file
                    yield Member(f"{name}/{member.name}", inner.offset_data + member.start, member.length)
    except tarfile.TarError as cause:
        raise DataError(f"{path} is damaged: {cause}", hint="compare its md5 with the published one") from cause
    except OSError as cause:
        raise unreadable(path, cause) from cause
