"""Summing gradients over the ranks: rank by rank from both ends of a chain to the root, then back.

In total, the ranks send as many bytes as a ring all-reduce, with any number of shards. Only functions that say so
wait: the backward pass continues meanwhile.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.parallel.team import Team


class Route:
    """The connections to one root and back. Creating it is collective: every rank must.

    A lane is a process group for the messages from one rank to a neighbour. Both must use it in the same order, but
    lanes are independent: a rank may be ahead on one and behind on another.
    """

    def __init__(self, team: Team, root: int) -> None:
        self.rank, self.num_ranks, self.root = team.world.rank, team.world.size, root
        self._lanes: dict[tuple[int, int], Any] = {}
        for left in range(self.num_ranks - 1):
            for source, target in ((left, left + 1), (left + 1, left)):
                name = f"from {source} to {target} by root {root}"
                self._lanes[source, target] = team.group([left, left + 1], name)
        self._open_lanes(team.device)

    def _open_lanes(self, device: torch.device) -> None:
        """Use every lane once, in an order that is the same on all ranks.

        NCCL connects two ranks when they first use a group, and blocks both until then: in a step, each of two ranks
        could wait for the other on another lane.
        """
        for source, target in self._lanes:
            if self.rank in {source, target}:
                self._move(torch.zeros(1, device=device), source, target).wait()

    @property
    def inside(self) -> int:
        """The neighbour nearer to the root."""
        return self.rank + (1 if self.rank < self.root else -1)

    @property
    def outside(self) -> tuple[int | None, int | None]:
        """The neighbours farther from the root: left and right."""
        left = self.rank - 1 if 0 < self.rank <= self.root else None
        right = self.rank + 1 if self.root <= self.rank < self.num_ranks - 1 else None
        return left, right

    def send(self, numbers: Tensor, target: int) -> dist.Work:
        """Start to send a tensor to a neighbour."""
        return self._move(numbers, self.rank, target)

    def receive(self, numbers: Tensor, source: int) -> dist.Work:
        """Start to receive a tensor from a neighbour."""
        return self._move(numbers, source, self.rank)

    def _move(self, numbers: Tensor, source: int, target: int) -> dist.Work:
        # A broadcast between two ranks, because gloo cannot tell whether an `irecv` has completed.
        work = dist.broadcast(numbers, source, group=self._lanes[source, target], async_op=True)
        assert work is not None
        return work


def middle_ranks(num_ranks: int) -> list[int]:
    """Return the ranks with the middle shards of the batch: one, or two that share the work of the root."""
    return sorted({(num_ranks - 1) // 2, num_ranks // 2})


Halves = tuple[list[Tensor], list[Tensor]]
"""A rank's gradients of the first half of the batch, and of the second, in the order of addition."""


class Exchange:
    """A piece of memory on its way to the root and back."""

    def __init__(self, sums: Halves, result: Tensor, route: Route, *, num_busy: int) -> None:
        """Post the receives of partial sums from ranks farther from the root; the first `num_busy` ranks have shards.

        `result` will hold the total. It may be one of `sums`, which have been sent before it is written.
        """
        self._sums = sums
        self._result = result
        self._route = route
        self._awaited: list[dist.Work] = []
        self._sent: list[dist.Work] = []
        # The sum of the first half starts at rank 0, that of the second at the last rank with a shard.
        left, right = route.outside
        sources = (left, right if right is not None and right < num_busy else None)
        self._partial = [None if source is None else torch.empty_like(result) for source in sources]
        for partial, source in zip(self._partial, sources, strict=True):
            if partial is not None and source is not None:
                self._awaited.append(route.receive(partial, source))

    @property
    def is_ready(self) -> bool:
        """Tell whether the pending receives are complete, so that the next operation does not block."""
        return all(work.is_completed() for work in self._awaited)

    def fold(self) -> None:
        """Wait for the partial sums, add this rank's own, and start to send the result towards the root."""
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
        """Wait for the total, and start to send it to the ranks farther from the root."""
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
    """The exchanges of a step with one root, in the same order on every rank."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self._exchanges: list[Exchange] = []
        self._num_folded = self._num_spread = 0

    def start(self, sums: Halves, result: Tensor, *, num_busy: int) -> None:
        """Start another exchange."""
        self._exchanges.append(Exchange(sums, result, self.route, num_busy=num_busy))

    @property
    def is_folded(self) -> bool:
        """Tell whether this rank has added its own sums to all exchanges."""
        return self._num_folded == len(self._exchanges)

    def go_on(self) -> None:
        """Do everything that does not block."""
        while not self.is_folded and self._exchanges[self._num_folded].is_ready:
            self.fold_next()
        while self._num_spread < self._num_folded and self._exchanges[self._num_spread].is_ready:
            self._exchanges[self._num_spread].spread()
            self._num_spread += 1

    def fold_next(self) -> None:
        """Wait for the partial sums of the next exchange, if there is one, and forward them."""
        if not self.is_folded:
            self._exchanges[self._num_folded].fold()
            self._num_folded += 1

    def finish(self) -> None:
        """Wait for all remaining exchanges, and drop them."""
        for exchange in self._exchanges[self._num_spread :]:
            exchange.spread()
        for exchange in self._exchanges:
            exchange.finish()
        self._exchanges = []
        self._num_folded = self._num_spread = 0


def finish(streams: Sequence[Stream]) -> None:
    """Wait for all exchanges of all streams. Collective: every rank must call it.

    A root waits for the sums of its neighbours, which may wait for this rank's sums in another stream. So a rank first
    sends what others need; and at the end it sends the totals of its own root before it waits for other roots.
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
    """Add a rank's own sums, one after the other, to the received partial sum, in the memory of the first of them."""
    sums = own if outside is None else [outside, *own]
    for other in sums[1:]:
        sums[0].add_(other)
    return sums[0] if sums else None
