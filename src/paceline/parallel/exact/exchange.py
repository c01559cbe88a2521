"""The way of gradients over the ranks: added up rank by rank from both ends of the line, then sent back.

In all, the ranks send what a ring all-reduce sends, however many shards each has. Nothing waits here unless asked to:
the backward pass goes on meanwhile.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.parallel.exact.line import Line

Halves = tuple[list[Tensor], list[Tensor]]
"""What a rank has of the first half of the batch, and of the second: gradients in the order of their addition."""


class Exchange:
    """A piece of memory on its way to one rank and back.

    Starting, folding and spreading are collective: every rank must do each of them for all exchanges in one order.
    """

    def __init__(self, sums: Halves, result: Tensor, line: Line, *, root: int, num_busy: int) -> None:
        """Start to receive what is added up outside of this rank; the first `num_busy` ranks have shards in this step.

        `result` will hold the sum of all. It may be one of `sums`: when it is written, they have been sent.
        """
        self._sums = sums
        self._result = result
        self._line = line
        self._root = root
        rank = line.rank
        self._partial = tuple(
            torch.empty_like(result) if comes else None for comes in (0 < rank <= root, root <= rank < num_busy - 1)
        )
        self._awaited = [
            line.receive(partial, neighbour, "inward")
            for partial, neighbour in zip(self._partial, (rank - 1, rank + 1), strict=True)
            if partial is not None
        ]
        self._sent: list[dist.Work] = []

    @property
    def is_ready(self) -> bool:
        """Tell whether what is awaited has come, so that the next thing to do need not wait."""
        return all(work.is_completed() for work in self._awaited)

    def fold(self) -> None:
        """Wait for the sums from outside, add this rank's own, and start to send them on to the root."""
        self._wait_for_others()
        totals = [fold(partial, own) for partial, own in zip(self._partial, self._sums, strict=True)]
        totals = [total for total in totals if total is not None]
        line, root = self._line, self._root
        if line.rank == root:
            torch.add(*totals, out=self._result) if len(totals) > 1 else self._result.copy_(totals[0])
            return
        inside = line.rank + (1 if line.rank < root else -1)
        self._sent = [line.send(total, inside, "inward") for total in totals]
        self._awaited = [line.receive(self._result, inside, "outward")]

    def spread(self) -> None:
        """Wait for the sum of all, and start to send it on to the ranks outside."""
        self._wait_for_others()
        line, rank = self._line, self._line.rank
        outside = [rank - 1] if 0 < rank <= self._root else []
        outside += [rank + 1] if self._root <= rank < line.num_ranks - 1 else []
        self._sent += [line.send(self._result, neighbour, "outward") for neighbour in outside]

    def finish(self) -> None:
        """Wait until everything has been sent."""
        for work in self._sent:
            work.wait()

    def _wait_for_others(self) -> None:
        for work in self._awaited:
            work.wait()
        self._awaited = []


def fold(outside: Tensor | None, own: Sequence[Tensor]) -> Tensor | None:
    """Add a rank's own sums, one after the other, to that of the shards outside, in the memory of the first of all."""
    sums = own if outside is None else [outside, *own]
    for other in sums[1:]:
        sums[0].add_(other)
    return sums[0] if sums else None
