"""The gradient of a step from its shards: the same bits, whoever computed which shard."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial

import torch
from torch import nn

from paceline.core.errors import ModelError
from paceline.parallel.exact.bucket import Bucket, make_buckets
from paceline.parallel.exact.changes import BufferChanges
from paceline.parallel.exact.exchange import Exchange, Lanes
from paceline.parallel.exact.tree import Node, cover
from paceline.parallel.team import Team


class Reducer:
    """Sums gradients and changes of buffers over all shards of all ranks, along the fixed tree.

        with reducer.step(num_shards):
            for each shard of this rank:
                with reducer.shard(weight):  forward, backward

    Afterwards every rank has the sum in its parameters. The exchange of a bucket starts when the backward pass of the
    rank's last shard has filled it, and goes on while the rest of that pass runs.
    """

    def __init__(self, model: nn.Module, team: Team, owned: Sequence[range]) -> None:
        self._owned = owned
        self._rank = team.world.rank
        self._lanes = Lanes() if team.world.size > 1 else None
        self._changes = BufferChanges(model)
        trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
        # The backward pass goes from the last layer to the first; what buffers did is known at its end.
        order = [*reversed(trainable), self._changes.carrier]
        self._buckets = make_buckets(order, multiple_of=team.world.size)
        self._exchanges: list[Exchange] = []
        self._num_started = self._num_advanced = 0
        self._shards: list[int] = []
        self._overlaps = False
        self._nodes = cache(self._nodes_of_ranks)
        if self._lanes is not None:
            self._watch_gradients()

    @contextmanager
    def step(self, num_shards: int) -> Iterator["Reducer"]:
        """Compute one step of so many shards. Collective: every rank must, also one that has no shard in it."""
        self._shards = [shard for shard in self._owned[self._rank] if shard < num_shards]
        self._changes.begin()
        for bucket in self._buckets:
            bucket.begin(num_shards)
        yield self
        self._finish_exchanges()
        for bucket in self._buckets:
            bucket.give()
        self._changes.apply()

    @contextmanager
    def shard(self, weight: float) -> Iterator[None]:
        """Compute this rank's next shard, whose share of the batch is `weight`."""
        shard, is_last = self._shards[0], len(self._shards) == 1
        self._changes.reset()
        self._overlaps = is_last and self._lanes is not None
        yield
        self._overlaps = False
        self._changes.collect(weight)
        for bucket in self._buckets[self._num_started :]:
            bucket.take(shard)
        self._shards.pop(0)

    def _watch_gradients(self) -> None:
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(partial(self._arrived, bucket))

    def _arrived(self, bucket: Bucket, parameter: torch.Tensor) -> None:
        """Start the exchange of every bucket that is full, in order, and advance those on their way."""
        if not self._overlaps:
            return
        if parameter not in bucket.missing:
            raise ModelError(
                "a parameter got a second gradient in one backward pass, as reentrant checkpointing does",
                hint="use checkpoint(…, use_reentrant=False), or --exact order",
            )
        bucket.missing.remove(parameter)
        while not self._buckets[self._num_started].missing:
            self._buckets[self._num_started].take(self._shards[0])
            self._start_next()
        self._advance_what_is_ready()

    def _start_next(self) -> None:
        bucket = self._buckets[self._num_started]
        self._num_started += 1
        if self._lanes is not None:
            nodes = self._nodes(bucket.sums.num_shards)
            self._exchanges += [Exchange(sums, result, nodes, self._lanes) for sums, result in bucket.pieces()]

    def _advance_what_is_ready(self) -> None:
        while self._num_advanced < len(self._exchanges) and self._exchanges[self._num_advanced].is_ready:
            self._exchanges[self._num_advanced].advance()
            self._num_advanced += 1

    def _finish_exchanges(self) -> None:
        while self._num_started < len(self._buckets):
            self._start_next()
        for exchange in self._exchanges[self._num_advanced :]:
            exchange.advance()
        for exchange in self._exchanges:
            exchange.wait()
        self._exchanges = []
        self._num_started = self._num_advanced = 0

    def _nodes_of_ranks(self, num_shards: int) -> list[list[Node]]:
        return [cover([shard for shard in owned if shard < num_shards], num_shards) for owned in self._owned]
