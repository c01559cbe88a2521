"""ImageNet (ILSVRC 2012): the usual train and val folders, or the two official tars, read in place."""

import csv
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.core.errors import DataError
from paceline.core.units import count
from paceline.data.augment.pipeline import Augmentation
from paceline.data.decode import BadImageError
from paceline.data.on_demand import OnDemand
from paceline.data.source_files import unreadable_file
from paceline.data.sources.image_folder import ENDINGS, ImageOptions, open_image_folder
from paceline.data.sources.published import PublishedSet, Remote, first_existing
from paceline.data.split import DataSet

KAGGLE, SYNSETS = "LOC_val_solution.csv", "imagenet_2012_validation_synset_labels.txt"
LABEL_FILES = (KAGGLE, SYNSETS)
"""Kaggle's table, or a class per line in the order of the image names."""
SOURCES = (
    f"{KAGGLE} (kaggle.com/c/imagenet-object-localization-challenge) "
    f"or {SYNSETS} (github.com/tensorflow/models, research/slim/datasets)"
)

DEVKIT = "ILSVRC2012_devkit_t12"
CONVERT = (
    'python -c "import scipy.io; '
    f"rows = scipy.io.loadmat('{DEVKIT}/data/meta.mat', squeeze_me=True)['synsets']; "
    "names = {int(row[0]): str(row[1]) for row in rows}; "
    f"truth = open('{DEVKIT}/data/ILSVRC2012_validation_ground_truth.txt'); "
    f"print(*(names[int(line)] for line in truth), sep='\\n')\" > {SYNSETS}"
)
"""Writes the synset list from the unpacked development kit."""


def validation_labels(root: Path, names: list[str], tar: str) -> list[str]:
    """Return the class (n01440764) of each of these validation images, which are sorted by name."""
    path = first_existing(root / name for name in LABEL_FILES)
    if path is None:
        raise _no_labels(root, tar)
    try:
        labels = _from_table(path, names) if path.name == KAGGLE else path.read_text().split()
    except OSError as cause:
        raise unreadable_file(path, cause) from cause
    except (ValueError, KeyError, IndexError) as cause:
        raise DataError(f"{path} has unexpected contents: {cause}", hint="get it again") from cause
    if len(labels) != len(names):
        raise DataError(
            f"{path} has labels for {count(len(labels))} of {count(len(names))} images in {tar}",
            hint="it is cut short or belongs to another set: get it again",
        )
    return labels


def _no_labels(root: Path, tar: str) -> DataError:
    """Return the error for a folder without a text file of labels; the development kit has them as MATLAB data."""
    kit = first_existing(root / name for name in (DEVKIT, f"{DEVKIT}.tar.gz"))
    if kit is None:
        return DataError(f"{tar} has no class labels", hint=f"put {SOURCES} into {root}")
    unpack = "" if kit.is_dir() else f"tar xzf {kit.name} && "
    return DataError(
        f"{kit} has the classes of {tar} as MATLAB data, but a text file is needed",
        hint=f"put {SOURCES} into {root}; or convert it with scipy: cd {root} && {unpack}{CONVERT}",
    )


def _from_table(path: Path, names: list[str]) -> list[str]:
    with path.open(newline="") as file:
        table = {row["ImageId"]: row["PredictionString"].split()[0] for row in csv.DictReader(file)}
    return [table[stem] for name in names if (stem := name.partition(".")[0]) in table]


TRAIN_TAR, VAL_TAR = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
IMAGENET = PublishedSet(
    name="imagenet",
    title="ImageNet (ILSVRC 2012): photographs in a thousand classes",
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
        return open_image_folder(root, options, augmentation)
    return _open_tars(root, options, augmentation)


def find_imagenet(data_dir: Path) -> Path | None:
    """Return the folder that has train and val, or the two tars; None when there is neither."""
    folders = [*IMAGENET.search_folders(data_dir), data_dir / "ILSVRC2012"]
    found = first_existing(folder / name for name in ("train", TRAIN_TAR) for folder in folders)
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
    """Images inside an uncompressed tar, read in place."""

    def __init__(self, path: Path, members: list[Member]) -> None:
        self._path = path
        self._starts: NDArray[np.int64] = np.array([member.start for member in members], np.int64)
        self._lengths: NDArray[np.int64] = np.array([member.length for member in members], np.int64)
        self._names = np.array([os.fsencode(member.name) for member in members], dtype=np.bytes_)

    def __len__(self) -> int:
        return len(self._starts)

    def name(self, index: int) -> str:
        """Return the tar and the name inside it."""
        return f"{self._path}:{os.fsdecode(self._names[index])}"

    def read(self, index: int) -> bytes:
        """Return the bytes of an image."""
        length = int(self._lengths[index])
        try:
            with self._path.open("rb", buffering=0) as file:
                length = min(length, os.fstat(file.fileno()).st_size + 1)  # a header may lie
                data = os.pread(file.fileno(), length, int(self._starts[index]))
        except OSError as cause:
            raise BadImageError(cause.strerror or str(cause)) from cause
        if len(data) < length:
            raise BadImageError("the tar ends before the end of the image")
        return data


def _open_tars(root: Path, options: ImageOptions, augmentation: Augmentation | None) -> DataSet:
    train_members = list(list_nested(root / TRAIN_TAR))
    test_members = sorted(list_tar(root / VAL_TAR))
    if not train_members or not test_members:
        raise DataError(
            f"{root / TRAIN_TAR} or {VAL_TAR} has no images", hint=f"compare its md5: {IMAGENET.by_hand(root)}"
        )
    classes = tuple(sorted({class_of(member) for member in train_members}))
    class_indices = {name: index for index, name in enumerate(classes)}
    labels = validation_labels(root, [member.name for member in test_members], VAL_TAR)
    unknown = sorted(set(labels) - set(class_indices))
    if unknown:
        raise DataError(
            f"classes {', '.join(unknown[:5])} are in {VAL_TAR} but not in {TRAIN_TAR}",
            hint=f"check that {TRAIN_TAR} is complete: compare its md5",
        )
    splits = (
        (TRAIN_TAR, train_members, [class_of(member) for member in train_members], augmentation),
        (VAL_TAR, test_members, labels, None),
    )
    train, test = (
        OnDemand(
            TarImages(root / tar, members),
            torch.tensor([class_indices[name] for name in names]),
            size=options.size,
            mean=options.mean,
            std=options.std,
            augmentation=extra,
            bad_images=options.bad_images,
        )
        for tar, members, names, extra in splits
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
        raise unreadable_file(path, cause) from cause


def list_nested(path: Path) -> Iterator[Member]:
    """List the images of a tar of tars, one per class."""
    try:
        with tarfile.open(path, "r:") as outer:
            for inner in outer:
                if not inner.isfile() or not inner.name.endswith(".tar"):
                    continue  # extractfile would follow a link, even one to itself
                file = outer.extractfile(inner)
                name = inner.name.removesuffix(".tar")
                for member in list_tar(path, file):  # pyright: ignore[reportArgumentType] - it is read like a file
                    yield Member(f"{name}/{member.name}", inner.offset_data + member.start, member.length)
    except tarfile.TarError as cause:
        raise DataError(f"{path} is damaged: {cause}", hint="compare its md5 with the published one") from cause
    except OSError as cause:
        raise unreadable_file(path, cause) from cause
