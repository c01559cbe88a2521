"""The user's own data: map-style data sets returned by "my.py:build"."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from paceline.core.errors import DataError
from paceline.core.keys import mix
from paceline.core.plugin import call_plugin, load_plugin
from paceline.data.order import held_out
from paceline.data.seeding import seed_generators
from paceline.data.split import Batch, DataSet, Ids, Split, Subset

TEST_FRACTION = 0.1
OWN_DATA = 0xDA7A
SINGLE_SPLIT = "my.py:build may return one data set or a pair (train, test)"


def open_user_data(name: str, *, data_dir: Path, seed: int) -> DataSet:
    """Call the user's function and return splits of its result: one data set, or a pair (train, test).

    Its random numbers are the same in every process and for every seed, so that the data set is fixed.
    """
    seed_generators(OWN_DATA)
    built = call_plugin(name, load_plugin(name, DataError), {"data_dir": data_dir}, DataError)
    if isinstance(built, DataSet):
        return built
    datasets = list(built) if isinstance(built, tuple | list) else [built]
    if not 1 <= len(datasets) <= 2:
        raise DataError(f"{name} returned {len(datasets)} data sets", hint=SINGLE_SPLIT)
    for dataset in datasets:
        _check_dataset(name, dataset)
    classes = _classes(name, datasets)
    splits = [_split(name, dataset, len(classes), seed) for dataset in datasets]
    shape = splits[0].fetch(np.array([0]), None).images.shape[1:]
    if len(shape) != 3:
        raise DataError(f"{name}: an image has shape {tuple(shape)}", hint="return channels × height × width")
    train, test = splits if len(splits) == 2 else _hold_out_test(splits[0])
    return DataSet(train=train, test=test, classes=classes, image_shape=(shape[0], shape[1], shape[2]))


class MapStyle:
    """A split over any data set with `len` and `[index]` that returns (image, label)."""

    def __init__(self, dataset: Any, *, name: str, num_classes: int, seed: int) -> None:
        self._dataset = dataset
        self._name = name
        self._num_classes = num_classes
        self._seed = seed

    def __len__(self) -> int:
        return len(self._dataset)

    def fetch(self, ids: Ids, epoch: int | None) -> Batch:
        """Return these samples; the generators are seeded for each, so transforms may draw random numbers."""
        items = []
        for index in ids.tolist():
            seed_generators(mix(self._seed, -1 if epoch is None else epoch, index))
            items.append(self._read(index))
        labels = torch.tensor([label for _, label in items])
        check_labels(labels, ids, num_classes=self._num_classes, name=self._name)
        return Batch(torch.stack([image for image, _ in items]), labels)

    def _read(self, index: int) -> tuple[torch.Tensor, int]:
        try:
            image, label = self._dataset[index]
        except Exception as cause:
            problem = f"{self._name}: reading item {index} raised {type(cause).__name__}: {cause}"
            raise DataError(problem, hint="an item is a pair (image, label)") from cause
        if not isinstance(image, torch.Tensor):
            image = torch.as_tensor(np.asarray(image))
        if not image.is_floating_point():
            raise DataError(
                f"{self._name}: the image of item {index} is {image.dtype}, not floating point",
                hint="scale it yourself, for example image.float() / 255",
            )
        return image, int(label)


class Tensors:
    """A split over a TensorDataset: a batch is one gather."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self._images = images.float()
        self._labels = labels.long()

    def __len__(self) -> int:
        return len(self._labels)

    def fetch(self, ids: Ids, epoch: int | None) -> Batch:  # every epoch has the same samples
        """Return these samples."""
        indices = torch.from_numpy(ids)
        return Batch(self._images[indices], self._labels[indices])


def check_labels(labels: torch.Tensor, ids: Ids, *, num_classes: int, name: str) -> None:
    """Refuse labels that are not class indices, naming the first such item."""
    wrong = (labels < 0) | (labels >= num_classes)
    if wrong.any():
        first = int(wrong.nonzero()[0])
        raise DataError(
            f"{name}: item {int(ids[first])} has label {int(labels[first])}, but there are {num_classes} classes",
            hint=f"labels must be between 0 and {num_classes - 1}; for more classes, set num_classes on the data set",
        )


def _check_dataset(name: str, dataset: Any) -> None:
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise DataError(
            f"{name} returned {type(dataset).__name__}, which has no len() and [index]",
            hint="return a torch.utils.data.Dataset, or a pair (train, test)",
        )
    if len(dataset) == 0:
        raise DataError(f"{name} returned an empty data set")


def _split(name: str, dataset: Any, num_classes: int, seed: int) -> Split:
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        images, labels = dataset.tensors
        check_labels(labels, np.arange(len(labels)), num_classes=num_classes, name=name)
        return Tensors(images, labels)
    return MapStyle(dataset, name=name, num_classes=num_classes, seed=seed)


def _hold_out_test(split: Split) -> tuple[Split, Split]:
    train_ids, test_ids = held_out(num_samples=len(split), fraction=TEST_FRACTION)
    return Subset(split, train_ids), Subset(split, test_ids)


def _classes(name: str, datasets: Sequence[Any]) -> tuple[str, ...]:
    """Return the classes, from the attributes that data sets usually have."""
    for dataset in datasets:
        if getattr(dataset, "classes", None):
            return tuple(map(str, dataset.classes))
        if getattr(dataset, "num_classes", None):
            return tuple(map(str, range(dataset.num_classes)))
    labels = [found for dataset in datasets if (found := _all_labels(dataset)) is not None]
    if not labels:
        raise DataError(f"{name} has no number of classes", hint="set num_classes on the data set")
    return tuple(map(str, range(max(map(max, labels)) + 1)))


def _all_labels(dataset: Any) -> list[int] | None:
    labels = dataset.tensors[-1] if isinstance(dataset, TensorDataset) else getattr(dataset, "targets", None)
    return None if labels is None or len(labels) == 0 else [int(label) for label in labels]
