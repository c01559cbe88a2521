"""The user's own data: whatever map-style data sets "my.py:build" returns."""

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
from paceline.data.split import Batch, DataSet, Ids, Split, Subset
from paceline.data.streams import seed_streams

SHARE_OF_TEST = 0.1
OWN_DATA = 0xDA7A
SINGLE_SPLIT = "my.py:build may return one data set or a pair (train, test)"


def open_own(name: str, *, data_dir: Path, seed: int) -> DataSet:
    """Call the user's function and make splits of what it returns: one data set, or a pair (train, test).

    What it draws at random is the same in every process and whatever the seed, as other data sets are.
    """
    seed_streams(OWN_DATA)
    built = call_plugin(name, load_plugin(name, DataError), {"data_dir": data_dir}, DataError)
    if isinstance(built, DataSet):
        return built
    parts = list(built) if isinstance(built, tuple | list) else [built]
    if not 1 <= len(parts) <= 2:
        raise DataError(f"{name} returned {len(parts)} data sets", hint=SINGLE_SPLIT)
    for part in parts:
        _check_part(name, part)
    classes = _classes(name, parts)
    splits = [_split(name, part, len(classes), seed) for part in parts]
    shape = splits[0].fetch(np.array([0]), None).images.shape[1:]
    if len(shape) != 3:
        raise DataError(f"{name}: an image has shape {tuple(shape)}", hint="return channels × height × width")
    train, test = splits if len(splits) == 2 else _cut(splits[0])
    return DataSet(train=train, test=test, classes=classes, image_shape=(shape[0], shape[1], shape[2]))


class MapStyle:
    """A split over any data set with `len` and `[index]` that gives (image, label)."""

    def __init__(self, dataset: Any, *, name: str, num_classes: int, seed: int) -> None:
        self._dataset = dataset
        self._name = name
        self._num_classes = num_classes
        self._seed = seed

    def __len__(self) -> int:
        return len(self._dataset)

    def fetch(self, ids: Ids, epoch: int | None) -> Batch:
        """Return these images; each is read with random streams of its own, so transforms may draw as they like."""
        items = []
        for index in ids.tolist():
            seed_streams(mix(self._seed, -1 if epoch is None else epoch, index))
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

    def fetch(self, ids: Ids, epoch: int | None) -> Batch:  # the images of every epoch are the same
        """Return these images."""
        places = torch.from_numpy(ids)
        return Batch(self._images[places], self._labels[places])


def check_labels(labels: torch.Tensor, ids: Ids, *, num_classes: int, name: str) -> None:
    """Refuse labels that are not class numbers, naming the first item that has one."""
    wrong = (labels < 0) | (labels >= num_classes)
    if wrong.any():
        place = int(wrong.nonzero()[0])
        raise DataError(
            f"{name}: item {int(ids[place])} has label {int(labels[place])}, but there are {num_classes} classes",
            hint=f"labels go from 0 to {num_classes - 1}; set num_classes on the data set if there are more",
        )


def _check_part(name: str, part: Any) -> None:
    if not hasattr(part, "__getitem__") or not hasattr(part, "__len__"):
        raise DataError(
            f"{name} returned {type(part).__name__}, which has no len() and [index]",
            hint="return a torch.utils.data.Dataset, or a pair (train, test)",
        )
    if len(part) == 0:
        raise DataError(f"{name} returned an empty data set")


def _split(name: str, part: Any, num_classes: int, seed: int) -> Split:
    if isinstance(part, TensorDataset) and len(part.tensors) == 2:
        images, labels = part.tensors
        check_labels(labels, np.arange(len(labels)), num_classes=num_classes, name=name)
        return Tensors(images, labels)
    return MapStyle(part, name=name, num_classes=num_classes, seed=seed)


def _cut(split: Split) -> tuple[Split, Split]:
    train_ids, test_ids = held_out(images=len(split), share=SHARE_OF_TEST)
    return Subset(split, train_ids), Subset(split, test_ids)


def _classes(name: str, parts: Sequence[Any]) -> tuple[str, ...]:
    """Find out how many classes there are, from what data sets usually carry."""
    for part in parts:
        if getattr(part, "classes", None):
            return tuple(map(str, part.classes))
        if getattr(part, "num_classes", None):
            return tuple(map(str, range(part.num_classes)))
    labels = [found for part in parts if (found := _all_labels(part)) is not None]
    if not labels:
        raise DataError(f"{name} does not say how many classes there are", hint="set num_classes on the data set")
    return tuple(map(str, range(max(max(part) for part in labels) + 1)))


def _all_labels(part: Any) -> list[int] | None:
    labels = part.tensors[-1] if isinstance(part, TensorDataset) else getattr(part, "targets", None)
    return None if labels is None or len(labels) == 0 else [int(label) for label in labels]
