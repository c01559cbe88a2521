"""Training metrics, collected at the lowest cost: the loss at every step, integer sums of small outputs in bulk."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from paceline.core.errors import DivergedError
from paceline.core.metrics import Sums
from paceline.data.tree import Tree, concatenated, map_leaves
from paceline.engine.scoring import Scoring, Tally, read_numbers

LARGEST_PENDING = 4_000_000
"""Buffered outputs before they are counted: 16 MB of fp32."""
LARGEST_OUTPUT = 1 << 16
"""Outputs of a micro-batch above this are counted at once."""


class Meter:
    """Collects the losses and outputs of each step.

    On a CPU the loss is read at every step, at no cost, so that a step with a non-finite loss is never applied. On a
    GPU reading it would synchronise the device, so losses are read together with the sums of the metrics.
    """

    def __init__(self, scoring: Scoring, *, eager: bool) -> None:
        self._scoring = scoring
        self._eager = eager
        self._is_mean = scoring.task.reduction == "mean"
        self._losses: list[tuple[str, float | Tensor, int]] = []
        self._pending: list[tuple[Tree, Tree]] = []
        self._num_pending, self._num_samples = 0, 0
        self._adds_integers: bool | None = None
        """Whether all metrics are integer sums, so that many micro-batches can be counted together; None: not known."""
        self._tally = Tally()
        self._folded = Sums()

    def add(
        self, losses: Mapping[str, Tensor], outputs: Tree, targets: Tree, *, counts: Mapping[str, int], num_samples: int
    ) -> None:
        """Take the losses of a micro-batch with their counts, and its outputs."""
        for name, loss in losses.items():
            value = loss.item() if self._eager else loss.detach()
            if self._eager and not math.isfinite(value):
                raise diverged(float(value), name)
            self._losses.append((name, value, counts[name]))
        self._num_samples += num_samples
        if self._adds_integers and isinstance(outputs, Tensor) and outputs.numel() <= LARGEST_OUTPUT:
            self._pending.append((outputs.detach(), targets))
            self._num_pending += outputs.numel()
            if self._num_pending > LARGEST_PENDING:
                self._fold()
        elif self._scoring.task.metrics:
            self._count(map_leaves(outputs, torch.Tensor.detach), targets)

    def take(self) -> Sums:
        """Return the sums since the last call."""
        self._fold()
        sums, self._folded = self._folded, Sums()
        return sums

    @torch.no_grad()
    def _count(self, outputs: Tree, targets: Tree) -> None:
        parts = self._scoring.parts(outputs, targets, training=True)
        for name, own in parts.items():
            self._tally.add(name, own)
        if self._adds_integers is None:
            every = [part for own in parts.values() for part in own]
            self._adds_integers = not any(
                part.is_floating_point() if isinstance(part, Tensor) else isinstance(part, float) for part in every
            )

    def _fold(self) -> None:
        if not self._num_samples:
            return
        if self._pending:
            self._count_together()
        values = read_numbers([value for _, value, _ in self._losses])
        for value, (name, _, count) in zip(values, self._losses, strict=True):
            self._tally.add(name, (value * count if self._is_mean else value, count), bits=self._scoring.loss_bits)
        self._folded += Sums(parts=self._tally.take(), samples=self._num_samples)
        self._losses.clear()
        self._pending.clear()
        self._num_pending, self._num_samples = 0, 0

    def _count_together(self) -> None:
        """Count what is pending at once if it fits together."""
        outputs, targets = [one for one, _ in self._pending], [other for _, other in self._pending]
        if len({tuple(output.shape[1:]) for output in outputs}) == 1:
            self._count(concatenated(outputs), concatenated(targets))
            return
        for pair in self._pending:
            self._count(*pair)


def diverged(loss: float, name: str = "loss") -> DivergedError:
    """Return the error for a non-finite loss; the caller adds the step."""
    which = "loss" if name == "loss" else f"loss {name}"
    return DivergedError(
        f"the {which} became {loss}",
        hint="try a lower --lr, a --warmup of a few epochs, --clip 1, or --precision fp32",
    )
