"""The way of gradients over the ranks: added up rank by rank from both ends of the line, then sent back.

In all, the ranks send what a ring all-reduce sends, however many shards each has. Nothing waits here unless asked to:
the backward pass goes on meanwhile.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.parallel.exact.route import Route

Halves = tuple[list[Tensor], list[Tensor]]
"""What a rank has of the first half of the batch, and of the second: gradients in the order of their addition."""


class Exchange:
    """A piece of memory on its way to the root and back."""

    def __init__(self, sums: Halves, result: Tensor, route: Route, *, num_busy: int) -> None:
        """Start to receive what is added up outside of this rank; the first `num_busy` ranks have shards in this step.

        `result` will hold the sum of all. It may be one of `sums`: when it is written, they have been sent.
        """
        self._sums = sums
        self._result = result
        self._route = route
        self._awaited: list[dist.Work] = []
        self._sent: list[dist.Work] = []
        # The sum of the first half begins at rank 0, that of the second at the last rank that has a shard.
        left, right = route.outside
        sources = (left, right if right is not None and right < num_busy else None)
        self._partial = [None if source is None else torch.empty_like(result) for source in sources]
        for partial, source in zip(self._partial, sources, strict=True):
            if partial is not None and source is not None:
                self._awaited.append(route.receive(partial, source))

    @property
    def is_ready(self) -> bool:
        """Tell whether what is awaited has come, so that the next thing to do need not wait."""
        return all(work.is_completed() for work in self._awaited)

    def fold(self) -> None:
        """Wait for the sums from outside, add this rank's own, and start to send them on to the root."""
        self._wait_for_others()
        route = self._route
        totals = [fold(partial, own) for partial, own in zip(self._partial, self._sums, strict=True)]
        totals = [total for total in totals if total is not None]
        if route.rank == route.root:
            torch.add(*totals, out=self._result) if len(totals) > 1 else self._result.copy_(totals[0])
            return
        self._sent = [route.send(total, route.inside) for total in totals]
        self._awaited = [route.receive(self._result, route.inside)]

    def spread(self) -> None:
        """Wait for the sum of all, and start to send it on to the ranks outside."""
        self._wait_for_others()
        neighbours = [neighbour for neighbour in self._route.outside if neighbour is not None]
        self._sent += [self._route.send(self._result, neighbour) for neighbour in neighbours]

    def finish(self) -> None:
        """Wait until everything has been sent."""
        for work in self._sent:
            work.wait()

    def _wait_for_others(self) -> None:
        for work in self._awaited:
            work.wait()
        self._awaited = []


class Stream:
    """The exchanges of a step that go to one root, which every rank starts, folds and spreads in the same order."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self._exchanges: list[Exchange] = []
        self._num_folded = self._num_spread = 0

    def start(self, sums: Halves, result: Tensor, *, num_busy: int) -> None:
        """Start another exchange."""
        self._exchanges.append(Exchange(sums, result, self.route, num_busy=num_busy))

    @property
    def is_folded(self) -> bool:
        """Tell whether this rank has added its own to all exchanges."""
        return self._num_folded == len(self._exchanges)

    def go_on(self) -> None:
        """Do what need not wait."""
        while not self.is_folded and self._exchanges[self._num_folded].is_ready:
            self.fold_next()
        while self._num_spread < self._num_folded and self._exchanges[self._num_spread].is_ready:
            self._exchanges[self._num_spread].spread()
            self._num_spread += 1

    def fold_next(self) -> None:
        """Wait for the sums that the next exchange awaits, if there is another one, and send them on."""
        if not self.is_folded:
            self._exchanges[self._num_folded].fold()
            self._num_folded += 1

    def finish(self) -> None:
        """Wait for all that is left, and forget it."""
        for exchange in self._exchanges[self._num_spread :]:
            exchange.spread()
        for exchange in self._exchanges:
            exchange.finish()
        self._exchanges = []
        self._num_folded = self._num_spread = 0


def finish(streams: Sequence[Stream]) -> None:
    """Wait for all exchanges of all streams. Collective: every rank must call it.

    A root awaits the sums that its neighbours send on, and they may await its own in another stream. So a rank first
    sends on what others need; and at the end, what it has added up as a root goes out before it waits for other roots.
    """
    roots_last = sorted(streams, key=lambda stream: stream.route.rank == stream.route.root)
    for stream in roots_last:
        while not stream.is_folded:
            stream.fold_next()
            for each in streams:
                each.go_on()
    for stream in reversed(roots_last):
        stream.finish()


def fold(outside: Tensor | None, own: Sequence[Tensor]) -> Tensor | None:
    """Add a rank's own sums, one after the other, to that of the shards outside, in the memory of the first of all."""
    sums = own if outside is None else [outside, *own]
    for other in sums[1:]:
        sums[0].add_(other)
    return sums[0] if sums else None
