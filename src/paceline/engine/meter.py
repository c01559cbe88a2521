"""Training metrics that cost a step almost nothing: predictions are kept and counted in bulk."""

import math

import torch

from paceline.core.errors import DivergedError
from paceline.core.metrics import Score

LARGEST_PENDING = 4_000_000
"""Numbers kept before they are counted: 16 MB of fp32 predictions."""


class Meter:
    """Collects what each step computed.

    On a CPU the loss is read at every step, which is free there, so that a step with a loss that is not finite is never
    applied. On a GPU reading it would wait for the device, so losses are read when the counts are.
    """

    def __init__(self, *, eager: bool) -> None:
        self._eager = eager
        self._losses: list[tuple[float | torch.Tensor, int]] = []
        self._predictions: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._num_pending = 0
        self._folded = Score()

    def add(self, loss: torch.Tensor, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Take the mean loss of a micro-batch and its predictions."""
        value = loss.item() if self._eager else loss.detach()
        if self._eager and not math.isfinite(value):
            raise diverged(float(value))
        self._losses.append((value, len(labels)))
        self._predictions.append((logits.detach(), labels))
        self._num_pending += logits.numel()
        if self._num_pending > LARGEST_PENDING:
            self._fold()

    def take(self) -> Score:
        """Return the sums since the last call."""
        self._fold()
        score, self._folded = self._folded, Score()
        return score

    def _fold(self) -> None:
        if not self._losses:
            return
        loss_sum = 0.0
        for loss, images in self._losses:
            loss_sum += _rounded(float(loss) * images)
        logits = torch.cat([logits for logits, _ in self._predictions])
        labels = torch.cat([labels for _, labels in self._predictions])
        correct1, correct5 = count_correct(logits, labels)
        images = len(labels)
        self._folded += Score(loss_sum=loss_sum, correct1=correct1, correct5=correct5, images=images)
        self._losses.clear()
        self._predictions.clear()
        self._num_pending = 0


def _rounded(value: float) -> float:
    """Return the nearest multiple of 2^-24: fp64 adds up to half a billion of them exactly, in whatever order."""
    return round(value * 2**24) / 2**24 if math.isfinite(value) else value


def count_correct(logits: torch.Tensor, labels: torch.Tensor) -> tuple[int, int]:
    """Return how many labels are the likeliest class, and how many are among the five likeliest."""
    ranked = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    return int(ranked[:, 0].sum()), int(ranked.sum())


def diverged(loss: float) -> DivergedError:
    """Return the error for a loss that is not a finite number; whoever knows the step adds it."""
    return DivergedError(
        f"the loss became {loss}",
        hint="try a lower --lr, a --warmup of a few epochs, --clip 1, or --precision fp32",
    )
