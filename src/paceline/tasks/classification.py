"""Image classification: cross-entropy, top-1 and top-5."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from paceline.data.tree import Tree
from paceline.tasks.task import Metric, Task


class MixedLabels(NamedTuple):
    """Labels of images into which augmentation has mixed others, with the probabilities of all classes."""

    labels: Tensor
    probabilities: Tensor


def count_correct(logits: Tensor, targets: Tensor | MixedLabels) -> tuple[Tensor, Tensor, int]:
    """Return the number of correct top-1 and top-5 predictions, and of all."""
    labels = targets.labels if isinstance(targets, MixedLabels) else targets
    ranked = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    return ranked[:, 0].sum(), ranked.sum(), len(labels)


def _accuracies(correct1: int, correct5: int, samples: int) -> dict[str, float]:
    return {"top1": correct1 / samples, "top5": correct5 / samples}


class Classification(Task):
    """One class per sample: a batch is images and labels, and class probabilities where images are mixed."""

    best = "top1"
    reduction = "mean"
    metrics = {"accuracy": Metric(sums=count_correct, value=_accuracies)}  # noqa: RUF012 - a constant

    def __init__(self, *, label_smoothing: float = 0.0) -> None:
        self._label_smoothing = label_smoothing

    def targets(self, batch: Tree) -> Tensor | MixedLabels:
        """Return the labels, with class probabilities if images are mixed."""
        mixed = batch[2] if len(batch) > 2 else None
        return batch[1] if mixed is None else MixedLabels(batch[1], mixed)

    def loss(self, outputs: Tensor, targets: Tensor | MixedLabels) -> Tensor:
        """Return the mean cross-entropy."""
        wanted = targets.probabilities if isinstance(targets, MixedLabels) else targets
        return functional.cross_entropy(outputs, wanted, label_smoothing=self._label_smoothing)

    def eval_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy without label smoothing, in double precision."""
        return functional.cross_entropy(outputs, targets, reduction="none").double().mean()

    def predict(self, outputs: Tensor) -> dict[str, Any]:
        """Return the likeliest class and its probability."""
        return {"class": outputs.argmax(1), "probability": torch.softmax(outputs, 1).amax(1)}
