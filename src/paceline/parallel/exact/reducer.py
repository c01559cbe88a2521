"""The gradient of a step from its shards: the same bits for every assignment of shards to ranks.

`core.batch_plan.order_of_addition` defines the order in which the gradients of shards are added.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from weakref import WeakMethod

import torch
from torch import nn

from paceline.core.batch_plan import order_of_addition
from paceline.core.errors import ModelError
from paceline.parallel.buffers import ShardBuffers
from paceline.parallel.exact.bucket import Bucket, make_buckets
from paceline.parallel.exact.exchange import Route, Stream, finish, middle_ranks
from paceline.parallel.team import Team


class Reducer:
    """Sums gradients and buffer changes over all shards of all ranks, in the fixed order.

        with reducer.step(num_shards):
            for each shard of this rank:
                with reducer.micro_batch(weight):  forward, backward

    Afterwards every rank has the sum in its parameters. The exchange of a bucket starts when the backward pass of the
    rank's last shard has filled it, and overlaps with the rest of that pass.
    """

    def __init__(self, model: nn.Module, team: Team, owned: Sequence[Sequence[int]]) -> None:
        """`owned` lists the shards of each rank in the order of computation."""
        self._owned = owned
        self._total_shards = sum(map(len, owned))
        self._world = team.world
        self._streams = [Stream(Route(team, root)) for root in middle_ranks(team.world.size)]
        self._changes = BufferChanges(model)
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        # The backward pass runs from the last layer to the first; buffer changes are known at its end.
        self._buckets = make_buckets([*reversed(trainable), self._changes.carrier])
        self._num_started = 0
        self._shards: list[int] = []
        self._num_busy = 0
        self._order = (range(0), range(0))
        self._overlaps = False
        if team.world.size > 1:
            self._watch_gradients()

    @contextmanager
    def step(self, num_shards: int) -> Iterator["Reducer"]:
        """Compute a step of `num_shards` shards. Collective: every rank must call it, including one without a shard."""
        self._shards = [shard for shard in self._owned[self._world.rank] if shard < num_shards]
        self._num_busy = sum(min(owned) < num_shards for owned in self._owned)
        self._order = order_of_addition(self._total_shards, num_shards)
        self._changes.begin()
        for bucket in self._buckets:
            bucket.begin()
        yield self
        self._finish_exchanges()
        for bucket in self._buckets:
            bucket.give()
        self._changes.apply()

    @contextmanager
    def micro_batch(self, weight: float) -> Iterator[None]:
        """Compute this rank's next shard; `weight` is its fraction of the batch."""
        self._changes.reset()
        self._overlaps = len(self._shards) == 1 and self._world.size > 1
        yield
        self._overlaps = False
        self._changes.collect(weight)
        for bucket in self._buckets[self._num_started :]:
            self._take(bucket)
        self._shards.pop(0)

    def _take(self, bucket: Bucket) -> None:
        """Let a bucket take the gradients of the current shard."""
        half = int(self._shards[0] in self._order[1])
        starts_sum = self._order[half][0] in self._owned[self._world.rank]
        bucket.take(half, add=starts_sum)

    def _watch_gradients(self) -> None:
        # Hooks outlive the reducer; a weak reference lets its process groups be freed.
        arrived = WeakMethod(self._arrived)
        for number, bucket in enumerate(self._buckets):
            for parameter in bucket.parameters:
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(partial(_tell, arrived, number))

    def _arrived(self, number: int, parameter: torch.Tensor) -> None:
        """Start the exchange of every full bucket, in order, and advance the running ones."""
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
        # One piece is received while another is forwarded: the longer the chain, the more pieces are in flight.
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
    """Notify the reducer, if it still exists, of another gradient in a bucket."""
    method = arrived()
    if method is not None:
        method(number, parameter)


class BufferChanges:
    """Lets every shard start from the same buffers, and applies the weighted sum of their changes at the end.

    The weights of all shards sum to 1, so a counter that every shard increments is incremented once.
    """

    def __init__(self, model: nn.Module) -> None:
        self._buffers = ShardBuffers(model)
        device = next(model.parameters()).device
        self.carrier = nn.Parameter(torch.zeros(self._buffers.size, device=device), requires_grad=False)
        """Its gradient holds the change of one shard, and after the exchange the sum of all."""

    def begin(self) -> None:
        """Store the values of the buffers before a step."""
        self._buffers.begin()

    def reset(self) -> None:
        """Restore the stored values before a shard."""
        self._buffers.reset()

    def collect(self, weight: float) -> None:
        """Store the changes of a shard, times its weight, in the carrier."""
        self.carrier.grad = self._buffers.change(weight).to(self.carrier)

    def apply(self) -> None:
        """Add the contents of the carrier to the buffers."""
        change = self.carrier.grad
        assert change is not None
        self._buffers.apply(change.double())
        self.carrier.grad = None
