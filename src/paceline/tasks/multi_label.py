"""Multi-label classification: any number of labels per sample; F1."""

from torch import Tensor
from torch.nn import functional

from paceline.tasks.task import Metric, Task


def _count_hits(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the labels that are found, wrongly found, and missed."""
    found, wanted = outputs > 0, targets.bool()
    return (found & wanted).sum(), (found & ~wanted).sum(), (~found & wanted).sum()


def _f1(hits: int, false: int, missed: int) -> float:
    return 2 * hits / (2 * hits + false + missed)


class MultiLabel(Task):
    """Labels: targets are N×K of 0 and 1; the loss is the sum over labels, averaged over samples."""

    best = "f1"
    metrics = {"f1": Metric(sums=_count_hits, value=_f1)}  # noqa: RUF012 - a constant

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the binary cross-entropies."""
        return functional.binary_cross_entropy_with_logits(outputs, targets.float(), reduction="sum")

    def predict(self, outputs: Tensor) -> dict[str, Tensor]:
        """Return which labels are found, and their probabilities."""
        return {"labels": (outputs > 0).int(), "probabilities": outputs.sigmoid()}
