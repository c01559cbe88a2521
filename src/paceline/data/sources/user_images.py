"""The user's own labelled images: samples become a batch, and what is no image or no label is refused."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.core.errors import DataError
from paceline.data.split import Ids, ImageBatch


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
