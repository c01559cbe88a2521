"""The gradient of a step from its shards: the same bits, whoever computed which shard.

Shards are added up in one order: those of the batch's first half from the first on, those of the second half from the
last on, and then the two. Ranks own neighbouring shards, so that each adds its own to the sum of the ranks outside.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from weakref import WeakMethod

import torch
from torch import nn

from paceline.core.errors import ModelError
from paceline.parallel.exact.bucket import Bucket, make_buckets
from paceline.parallel.exact.changes import BufferChanges
from paceline.parallel.exact.exchange import Stream, finish
from paceline.parallel.exact.route import Route, middle_ranks
from paceline.parallel.team import Team


class Reducer:
    """Sums gradients and changes of buffers over all shards of all ranks, in the fixed order.

        with reducer.step(num_shards):
            for each shard of this rank:
                with reducer.shard(weight):  forward, backward

    Afterwards every rank has the sum in its parameters. The exchange of a bucket starts when the backward pass of the
    rank's last shard has filled it, and goes on while the rest of that pass runs.
    """

    def __init__(self, model: nn.Module, team: Team, owned: Sequence[Sequence[int]], *, middle: int) -> None:
        """`owned` are the shards of each rank in the order of their computation, `middle` begins the second half."""
        self._owned = owned
        self._middle = middle
        self._world = team.world
        self._streams = [Stream(Route(team, root)) for root in middle_ranks(team.world.size)]
        self._changes = BufferChanges(model)
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        # The backward pass goes from the last layer to the first; what buffers did is known at its end.
        self._buckets = make_buckets([*reversed(trainable), self._changes.carrier])
        self._num_started = 0
        self._shards: list[int] = []
        self._num_busy = 0
        self._overlaps = False
        if team.world.size > 1:
            self._watch_gradients()

    @contextmanager
    def step(self, num_shards: int) -> Iterator["Reducer"]:
        """Compute one step of so many shards. Collective: every rank must, also one that has no shard in it."""
        self._shards = [shard for shard in self._owned[self._world.rank] if shard < num_shards]
        self._num_busy = sum(min(owned) < num_shards for owned in self._owned)
        self._changes.begin()
        for bucket in self._buckets:
            bucket.begin()
        yield self
        self._finish_exchanges()
        for bucket in self._buckets:
            bucket.give()
        self._changes.apply()

    @contextmanager
    def shard(self, weight: float) -> Iterator[None]:
        """Compute this rank's next shard, whose share of the batch is `weight`."""
        self._changes.reset()
        self._overlaps = len(self._shards) == 1 and self._world.size > 1
        yield
        self._overlaps = False
        self._changes.collect(weight)
        for bucket in self._buckets[self._num_started :]:
            self._take(bucket)
        self._shards.pop(0)

    def _take(self, bucket: Bucket) -> None:
        """Let a bucket take the gradients of the shard that is being computed."""
        half = int(self._shards[0] >= self._middle)
        first_rank = (0, self._num_busy - 1)[half]
        bucket.take(half, add=self._world.rank == first_rank)

    def _watch_gradients(self) -> None:
        # A parameter never lets go of its hooks: one that held the reducer would keep it, and its connections, forever.
        arrived = WeakMethod(self._arrived)
        for number, bucket in enumerate(self._buckets):
            for parameter in bucket.parameters:
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(partial(_tell, arrived, number))

    def _arrived(self, number: int, parameter: torch.Tensor) -> None:
        """Start the exchange of every bucket that is full, in order, and go on with those on their way."""
        if not self._overlaps:
            return
        bucket = self._buckets[number]
        if parameter not in bucket.missing:
            raise ModelError(
                "a parameter got a second gradient in one backward pass, as reentrant checkpointing does",
                hint="use checkpoint(…, use_reentrant=False), or --exact order",
            )
        bucket.missing.remove(parameter)
        while not self._buckets[self._num_started].missing:
            self._take(self._buckets[self._num_started])
            self._start_next()
        for stream in self._streams:
            stream.go_on()

    def _start_next(self) -> None:
        # One piece comes in while another is sent on: the longer the line, the more of them are on their way.
        pieces = self._buckets[self._num_started].pieces(2 * self._world.size)
        for (sums, result), stream in zip(pieces, cycle(self._streams), strict=False):
            stream.start(sums, result, num_busy=self._num_busy)
        self._num_started += 1

    def _finish_exchanges(self) -> None:
        while self._num_started < len(self._buckets):
            self._start_next()
        finish(self._streams)
        self._num_started = 0


def _tell(arrived: WeakMethod, number: int, parameter: torch.Tensor) -> None:
    """Tell the reducer, if it is still there, that a bucket has another gradient."""
    method = arrived()
    if method is not None:
        method(number, parameter)
