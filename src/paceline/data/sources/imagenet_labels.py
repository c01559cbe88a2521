"""The classes of ImageNet's validation images, which their tar does not tell: three files that do."""

import csv
import tarfile
from pathlib import Path

from paceline.core.errors import DataError
from paceline.core.units import count
from paceline.data.checksum import unreadable
from paceline.data.sources.known import first_existing
from paceline.data.sources.matfile import read_table

DEVKIT = "ILSVRC2012_devkit_t12"
TRUTH, META = f"{DEVKIT}/data/ILSVRC2012_validation_ground_truth.txt", f"{DEVKIT}/data/meta.mat"
KAGGLE, LINES = "LOC_val_solution.csv", "imagenet_2012_validation_synset_labels.txt"
LABEL_FILES = (KAGGLE, LINES, f"{DEVKIT}.tar.gz", DEVKIT)
"""Kaggle's table, a class per line in the order of the names, or the official development kit, unpacked or not."""


def validation_labels(root: Path, names: list[str], tar: str) -> list[str]:
    """Return the class (n01440764) of each of these validation images, which are sorted by name."""
    path = first_existing(root / name for name in LABEL_FILES)
    if path is None:
        wanted = f"{DEVKIT}.tar.gz, {KAGGLE} or {LINES}"
        raise DataError(f"{tar} does not say which class an image has", hint=f"put {wanted} into {root}")
    try:
        labels = _read(path, names)
    except (OSError, tarfile.TarError, EOFError) as cause:
        problem = cause if isinstance(cause, OSError) else OSError(str(cause))
        raise unreadable(path, problem) from cause
    except (ValueError, KeyError, IndexError) as cause:
        raise DataError(f"{path} does not hold what it should: {cause}", hint="get it again") from cause
    if len(labels) != len(names):
        raise DataError(
            f"{path} has labels for {count(len(labels))} of {count(len(names))} images in {tar}",
            hint="it is cut short or belongs to another set: get it again",
        )
    return labels


def _read(path: Path, names: list[str]) -> list[str]:
    if path.name == KAGGLE:
        return _from_table(path, names)
    if path.name == LINES:
        return path.read_text().split()
    if path.is_dir():
        return _from_devkit(*((path.parent / part).read_bytes() for part in (TRUTH, META)))
    with tarfile.open(path) as tar:
        return _from_devkit(*(_content(tar, part) for part in (TRUTH, META)))


def _from_table(path: Path, names: list[str]) -> list[str]:
    with path.open(newline="") as file:
        table = {row["ImageId"]: row["PredictionString"].split()[0] for row in csv.DictReader(file)}
    return [table[stem] for name in names if (stem := name.partition(".")[0]) in table]


def _content(tar: tarfile.TarFile, name: str) -> bytes:
    file = tar.extractfile(name)
    return b"" if file is None else file.read()


def _from_devkit(truth: bytes, meta: bytes) -> list[str]:
    """Translate the development kit's numbers of classes, which follow no order, by the table that comes with them."""
    names = {row["ILSVRC2012_ID"]: str(row["WNID"]) for row in read_table(meta, "synsets")}
    numbers = [int(word) for word in truth.split()]
    strange = sorted(set(numbers) - set(names))
    if strange:
        raise ValueError(f"class {strange[0]} is not in its meta.mat")
    return [names[number] for number in numbers]
