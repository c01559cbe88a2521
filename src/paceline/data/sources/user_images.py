"""The user's own labelled images: samples become a batch, and what is no image or no label is refused."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.core.errors import DataError
from paceline.core.units import count
from paceline.data.split import Ids, ImageBatch

MOST_SHOWN = 8
UNEVEN = 3
"""How many times more images a class has than another, from which the counts are shown."""


def has_channels_last(shape: Sequence[int]) -> bool:
    """Tell whether images are height × width × channels beyond doubt: a usual number of channels is last, not first.

    A long strip, such as twelve leads × 1,000 samples × 1, may well be channels × height × width.
    """
    usual = {1, 3, 4}
    is_strip = max(shape[:2]) > 4 * min(shape[:2])
    return shape[2] in usual and shape[0] not in usual and shape[2] < min(shape[:2]) and not is_strip


def to_images(items: Sequence[Any], ids: Ids, *, name: str, num_classes: int) -> ImageBatch:
    """Return labelled images as a batch, and refuse what is not one."""
    images, numbers = [], []
    for index, item in zip(ids.tolist(), items, strict=True):
        try:
            image, label = (item["image"], item["label"]) if isinstance(item, Mapping) else item
            numbers.append(int(label))
        except (TypeError, ValueError, KeyError, RuntimeError) as cause:
            problem = f"{name}: item {index} is not a pair (image, label): {cause}"
            raise DataError(problem, hint="return (image, label), or name another task with --task") from cause
        images.append(_floating(image, index, name))
    labels = torch.tensor(numbers)
    check_labels(labels, ids, num_classes=num_classes, name=name)
    return ImageBatch(torch.stack(images), labels)


def to_labels(name: str, samples: Sequence[Any]) -> list[Any]:
    """Return the labels of a list of samples: pairs (image, label), or dicts with these keys."""
    try:
        return [sample["label"] if isinstance(sample, Mapping) else sample[1] for sample in samples]
    except (LookupError, TypeError) as cause:
        problem = f"{name} returned a list, but not of pairs (image, label)"
        raise DataError(problem, hint="return (image, label) for every sample, or name another --task") from cause


def uneven_classes(name: str, labels: Sequence[int], num_classes: int) -> Iterator[str]:
    """Yield a sentence if classes have no images, or a few times fewer than others."""
    counts = np.bincount(np.asarray(labels), minlength=num_classes)
    missing = np.flatnonzero(counts == 0)
    if len(missing):
        shown = ", ".join(map(str, missing[:MOST_SHOWN])) + (", …" if len(missing) > MOST_SHOWN else "")
        first = "; labels start at 0" if missing[0] == 0 else ""
        yield f"{name}: no image of {num_classes} classes has label {shown}{first}"
    present = counts[counts > 0]
    if len(present) and present.max() >= UNEVEN * present.min():
        shown = ", ".join(map(count, counts[:MOST_SHOWN])) + (", …" if num_classes > MOST_SHOWN else "")
        yield f"{name}: classes have between {count(present.min())} and {count(present.max())} images: {shown}"


def _floating(image: Any, index: int, name: str) -> Tensor:
    if hasattr(image, "getbands"):  # of PIL, which need not be installed
        raise DataError(
            f"{name}: the image of item {index} is a PIL image, not a tensor",
            hint="return torch.from_numpy(numpy.array(image.convert('RGB'))).permute(2, 0, 1) / 255",
        )
    image = image if isinstance(image, Tensor) else torch.as_tensor(np.asarray(image))
    if not image.is_floating_point():
        raise DataError(
            f"{name}: the image of item {index} is {image.dtype}, not floating point",
            hint="scale it yourself, for example image.float() / 255",
        )
    return image


def check_labels(labels: torch.Tensor, ids: Ids, *, num_classes: int, name: str) -> None:
    """Refuse labels that are not class indices, naming the first such item."""
    wrong = (labels < 0) | (labels >= num_classes)
    if wrong.any():
        first = int(wrong.nonzero()[0])
        raise DataError(
            f"{name}: item {int(ids[first])} has label {int(labels[first])}, but there are {num_classes} classes",
            hint=f"labels must be between 0 and {num_classes - 1}; for more classes, set num_classes on the data set",
        )
