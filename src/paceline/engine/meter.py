"""Training metrics at almost no cost per step: predictions are buffered and counted in bulk."""

import math

import torch

from paceline.core.errors import DivergedError
from paceline.core.metrics import Score

LARGEST_PENDING = 4_000_000
"""Buffered predictions before they are counted: 16 MB of fp32."""


class Meter:
    """Collects the loss and predictions of each step.

    On a CPU the loss is read at every step, at no cost, so that a step with a non-finite loss is never applied. On a
    GPU reading it would synchronise the device, so losses are read together with the counts.
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
        values = _read([loss for loss, _ in self._losses])
        losses = (Score.of(loss * size) for loss, (_, size) in zip(values, self._losses, strict=True))
        logits = torch.cat([logits for logits, _ in self._predictions])
        labels = torch.cat([labels for _, labels in self._predictions])
        correct1, correct5 = torch.stack(count_correct(logits, labels)).tolist()
        self._folded += sum(losses, start=Score(correct1=correct1, correct5=correct5, samples=len(labels)))
        self._losses.clear()
        self._predictions.clear()
        self._num_pending = 0


def _read(losses: list[float | torch.Tensor]) -> list[float]:
    """Return losses as numbers; those of a device are read together, because each read waits for it."""
    tensors = [loss for loss in losses if isinstance(loss, torch.Tensor)]
    numbers = iter(torch.stack(tensors).tolist() if tensors else [])
    return [next(numbers) if isinstance(loss, torch.Tensor) else loss for loss in losses]


def count_correct(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the number of correct top-1 and top-5 predictions, on the device of the predictions."""
    ranked = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
    return ranked[:, 0].sum(), ranked.sum()


def diverged(loss: float) -> DivergedError:
    """Return the error for a non-finite loss; the caller adds the step."""
    return DivergedError(
        f"the loss became {loss}",
        hint="try a lower --lr, a --warmup of a few epochs, --clip 1, or --precision fp32",
    )
