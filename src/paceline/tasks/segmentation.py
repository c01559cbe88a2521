"""Segmentation: a class for every pixel; mean intersection over union."""

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from paceline.tasks.task import Metric, Task

IGNORED = 255
"""A pixel that does not count."""


def confusion(num_classes: int, logits: Tensor, mask: Tensor) -> Tensor:
    """Return how many pixels of each class (row) are predicted as each class (column)."""
    kept = mask != IGNORED
    pairs = mask[kept].long() * num_classes + logits.argmax(1)[kept]
    return torch.bincount(pairs, minlength=num_classes * num_classes).view(num_classes, num_classes)


def mean_iou(matrix: Tensor) -> float:
    """Return the mean over classes of intersection over union; classes that occur nowhere are left out."""
    return (matrix.diag() / (matrix.sum(0) + matrix.sum(1) - matrix.diag())).nanmean().item()


class Segmentation(Task):
    """Masks: a batch is images and N×H×W class indices; 255 is ignored."""

    best = "mIoU"
    unit = "pixels"
    eval_batch = 32

    def __init__(self, num_classes: int) -> None:
        self.metrics = {"mIoU": Metric(sums=partial(confusion, num_classes), value=mean_iou)}

    def count(self, targets: Tensor) -> Tensor:
        """Return the number of pixels that are not ignored."""
        return (targets != IGNORED).sum()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the cross-entropies of all pixels."""
        return functional.cross_entropy(outputs, targets.long(), ignore_index=IGNORED, reduction="sum")

    def predict(self, outputs: Tensor) -> dict[str, Tensor]:
        """Return the mask."""
        return {"mask": outputs.argmax(1)}
