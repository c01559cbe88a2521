"""The user's own data: map-style data sets returned by "my.py:build"."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from paceline.core.entry_points import load_part
from paceline.core.errors import DataError
from paceline.core.keys import mix
from paceline.core.plugin import call_plugin
from paceline.core.setting_types import SampleOrder
from paceline.data.augment.user_step import UserStep, change_sample
from paceline.data.collate import Collate, explained, stack_samples
from paceline.data.order import held_out
from paceline.data.seeding import seed_generators
from paceline.data.sources.user_images import check_labels, has_channels_last, to_images, to_labels, uneven_classes
from paceline.data.split import DataSet, Ids, ImageBatch, Split, Subset
from paceline.data.tree import Tree

TEST_FRACTION = 0.1
OWN_DATA = 0xDA7A
SINGLE_SPLIT = "my.py:build may return one data set or a pair (train, test)"
CLASSIFICATION = "classification"
NAMED_FACTS = ("num_classes", "classes", "vocab_size", "image_shape")
"""Facts that a data set may have as attributes; others belong in its attribute `facts`, a dict."""

ToBatch = Callable[[Sequence[Any], Ids], Tree]
"""Takes samples and their ids, and returns the batch."""


def open_user_data(  # noqa: PLR0913 - one argument per setting
    name: str,
    *,
    data_dir: Path,
    seed: int,
    task: str | None = None,
    collate: Collate | None = None,
    order: SampleOrder = "auto",
    steps: Sequence[UserStep] = (),
) -> DataSet:
    """Call the user's function and return splits of its result: one data set, or a pair (train, test).

    `steps` change samples in training.

    Its random numbers are the same in every process and for every seed, so that the data set is fixed. A data set may
    name its usual task and facts, and have a method `collate`; `task` and `collate` override them.
    """
    seed_generators(OWN_DATA)
    built = call_plugin(name, load_part("data", name, DataError), {"data_dir": data_dir}, DataError)
    if isinstance(built, DataSet):
        return built
    datasets = list(built) if _is_group(built) else [built]
    if not 1 <= len(datasets) <= 2:
        raise DataError(f"{name} returned {len(datasets)} data sets", hint=SINGLE_SPLIT)
    for dataset in datasets:
        _check_dataset(name, dataset)
    to_split = partial(MapStyle, name=name, seed=seed, steps=steps)
    usual = next((dataset.task for dataset in datasets if getattr(dataset, "task", None)), CLASSIFICATION)
    if (task or usual) == CLASSIFICATION:
        return _labelled_images(name, datasets, to_split, order)
    splits = [_items(name, dataset, to_split, collate) for dataset in datasets]
    train, test = splits if len(splits) == 2 else _hold_out_test(splits[0], order)
    return DataSet(train=train, test=test, task=usual, named_facts=_facts(datasets, splits[0]))


def _is_group(built: Any) -> bool:
    """Tell whether a function returned several data sets: a tuple, or a list of anything but samples."""
    if not isinstance(built, list):
        return isinstance(built, tuple)
    samples = (tuple, Mapping) if len(built) <= 2 else (tuple, Mapping, list, Tensor)
    return all(hasattr(item, "__getitem__") and not isinstance(item, samples) for item in built)


def _labelled_images(name: str, datasets: Sequence[Any], to_split: "ToSplit", order: SampleOrder) -> DataSet:
    """Return images and class indices, checked: the data of image classification."""
    classes = _classes(name, datasets)
    splits = [_labelled_split(name, dataset, len(classes), to_split) for dataset in datasets]
    shape = splits[0].fetch(np.array([0]), None).images.shape[1:]
    if len(shape) != 3:
        raise DataError(f"{name}: an image has shape {tuple(shape)}", hint="return channels × height × width")
    if has_channels_last(shape):
        raise DataError(
            f"{name}: images of {'×'.join(map(str, shape))} look like height × width × channels",
            hint="return channels × height × width: image.permute(2, 0, 1)",
        )
    train, test = splits if len(splits) == 2 else _hold_out_test(splits[0], order)
    notes = class_warnings(name, datasets, len(classes))
    shape = (shape[0], shape[1], shape[2])
    return DataSet(train=train, test=test, classes=classes, image_shape=shape, warnings=notes)


class MapStyle:
    """A split over any data set with `len` and `[index]`."""

    def __init__(  # noqa: PLR0913 - what a sample is, how it is read, changed and batched
        self,
        dataset: Any,
        *,
        name: str,
        seed: int,
        steps: Sequence[UserStep],
        to_batch: ToBatch,
        sample: str = "a sample",
    ) -> None:
        self._dataset = dataset
        self._steps = steps
        self._name = name
        self._seed = seed
        self._to_batch = to_batch
        self._sample = sample

    def __len__(self) -> int:
        return len(self._dataset)

    def fetch(self, ids: Ids, epoch: int | None) -> Tree:
        """Return these samples; the generators are seeded for each, so transforms may draw random numbers."""
        items = []
        for index in ids.tolist():
            seed_generators(mix(self._seed, -1 if epoch is None else epoch, index))
            item = self._read(index)
            items.append(item if epoch is None else change_sample(self._steps, item))
        return self._to_batch(items, ids)

    def _read(self, index: int) -> Any:
        try:
            return self._dataset[index]
        except Exception as cause:
            problem = f"{self._name}: reading item {index} raised {type(cause).__name__}: {cause}"
            raise DataError(problem, hint=f"data set[{index}] must return {self._sample}") from cause


ToSplit = partial[MapStyle]
"""Makes a split of a data set; the arguments that are left say how samples become a batch."""


class Tensors:
    """A split over a TensorDataset: a batch is one gather."""

    def __init__(self, tensors: Sequence[Tensor], kind: Callable[..., Tree]) -> None:
        self.held = tensors
        self._kind = kind

    def __len__(self) -> int:
        return len(self.held[0])

    def fetch(self, ids: Ids, epoch: int | None) -> Tree:  # every epoch has the same samples
        """Return these samples."""
        indices = torch.from_numpy(ids)
        return self._kind(*(tensor[indices] for tensor in self.held))


def _together(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tensors


def _items(name: str, dataset: Any, to_split: ToSplit, collate: Collate | None) -> Split:
    """Return the split of a data set with samples of any structure."""
    collate = getattr(dataset, "collate", None) if collate is None else collate
    if collate is not None:
        to_batch = partial(_collated, explained(collate, f"the collate of {name}"))
        return to_split(dataset, to_batch=to_batch)
    if isinstance(dataset, TensorDataset) and not to_split.keywords["steps"]:
        return Tensors(dataset.tensors, _together)
    return to_split(dataset, to_batch=_stacked)


class SampleSequence(Protocol):
    """Any sequence of samples: a list, a tensor, a data set, a range."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, index: Any, /) -> Any:
        """Return a sample."""
        ...


def own_sequence(data: SampleSequence, *, seed: int, collate: Collate | None) -> Split:
    """Return the split of any sequence, for a loop of the user."""
    _check_dataset("the data of run.batches", data)
    name = "the data of the loop"
    return _items(name, data, partial(MapStyle, name=name, seed=seed, steps=()), collate)


def _collated(collate: Collate, items: Sequence[Any], _ids: Ids) -> Tree:
    return collate(items)


def _stacked(items: Sequence[Any], ids: Ids) -> Tree:
    return stack_samples(items, ids.tolist())


def _facts(datasets: Sequence[Any], split: Split) -> dict[str, Any]:
    """Return what the data sets say about themselves, and the shape of images in the first place of a sample."""
    facts: dict[str, Any] = {}
    for dataset in reversed(datasets):
        own = {fact: getattr(dataset, fact) for fact in NAMED_FACTS if getattr(dataset, fact, None)}
        stated = getattr(dataset, "facts", {})
        facts |= own | (dict(stated) if isinstance(stated, Mapping) else {})
    if "classes" in facts:
        facts = {"num_classes": len(facts["classes"])} | facts
    batch = split.fetch(np.array([0]), None)
    first = batch[0] if isinstance(batch, tuple | list) and batch else None
    if isinstance(first, Tensor) and first.dim() == 4 and first.is_floating_point():
        facts = {"image_shape": tuple(first.shape[1:])} | facts
    if "image_shape" in facts:
        channels, height, _ = facts["image_shape"]
        facts = {"in_channels": channels, "image_size": height} | facts
    return facts


def _check_dataset(name: str, dataset: Any) -> None:
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise DataError(
            f"{name} returned {type(dataset).__name__}, which has no len() and [index]",
            hint="return a torch.utils.data.Dataset, or a pair (train, test)",
        )
    if len(dataset) == 0:
        raise DataError(f"{name} returned an empty data set")


def _labelled_split(name: str, dataset: Any, num_classes: int, to_split: ToSplit) -> Split:
    is_plain = isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2
    if is_plain and not to_split.keywords["steps"]:
        images, labels = dataset.tensors
        check_labels(labels, np.arange(len(labels)), num_classes=num_classes, name=name)
        return Tensors([images.float(), labels.long()], ImageBatch)
    to_batch = partial(to_images, name=name, num_classes=num_classes)
    return to_split(dataset, to_batch=to_batch, sample="a pair (image, label)")


def _hold_out_test(split: Split, order: SampleOrder) -> tuple[Split, Split]:
    train_ids, test_ids = held_out(num_samples=len(split), fraction=TEST_FRACTION, order=order)
    return Subset(split, train_ids), Subset(split, test_ids)


def _classes(name: str, datasets: Sequence[Any]) -> tuple[str, ...]:
    """Return the classes, from the attributes that data sets usually have."""
    for dataset in datasets:
        if getattr(dataset, "classes", None):
            return tuple(map(str, dataset.classes))
        if getattr(dataset, "num_classes", None):
            return tuple(map(str, range(dataset.num_classes)))
    labels = [found for dataset in datasets if (found := _all_labels(name, dataset)) is not None]
    if not labels:
        raise DataError(f"{name} has no number of classes", hint="set num_classes on the data set")
    return tuple(map(str, range(max(map(max, labels)) + 1)))


def class_warnings(name: str, datasets: Sequence[Any], num_classes: int) -> tuple[str, ...]:
    """Return a warning about classes of the training data without images or with few, if the labels are in memory."""
    labels = _all_labels(name, datasets[0])
    return () if labels is None else tuple(uneven_classes(name, labels, num_classes))


def _all_labels(name: str, dataset: Any) -> list[int] | None:
    labels = dataset.tensors[-1] if isinstance(dataset, TensorDataset) else getattr(dataset, "targets", None)
    if labels is None and isinstance(dataset, list):  # samples in memory
        labels = to_labels(name, dataset)
    if labels is None or len(labels) == 0:
        return None
    try:
        return [int(label) for label in labels]
    except (TypeError, ValueError, RuntimeError) as cause:
        kind = getattr(labels[0], "shape", None)
        what = f"has shape {tuple(kind)}" if kind is not None else f"is {labels[0]!r:.40}"
        raise DataError(
            f"{name}: a label {what}, but must be the index of a class",
            hint="for one-hot labels return label.argmax(); for several classes per sample: --task multi-label",
        ) from cause
