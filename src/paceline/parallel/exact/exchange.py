"""The way of a bucket over the ranks: every rank adds up its chunk over the fixed tree, then all get all chunks.

The first half moves what a ring's reduce-scatter moves, as long as each rank has one node to send; the second half is a
ring's all-gather. Nothing waits here unless asked to: the backward pass goes on meanwhile.
"""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from paceline.parallel.exact.bucket import Bucket, Flat
from paceline.parallel.exact.tree import Node, Sums


class Groups:
    """Two process groups: a rank may be ahead with the first half of a bucket and behind with another's second."""

    def __init__(self) -> None:
        self.scatter: Any = dist.group.WORLD
        self.gather: Any = dist.new_group()
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()


class Exchange:
    """One bucket on its way. Starting and advancing are collective: every rank must do both, in the same order."""

    def __init__(self, bucket: Bucket, groups: Groups, nodes: Sequence[Sequence[Node]]) -> None:
        self._bucket = bucket
        self._groups = groups
        self._own = [flat for _, flat in bucket.sums.parts]
        self._chunk = bucket.size // groups.size
        self._works: list[dist.Work] = []
        self._received: list[tuple[Node, Tensor]] = []
        self._result: Flat | None = None
        for turn in range(max(map(len, nodes))):
            self._send(turn, nodes)

    def _send(self, turn: int, nodes: Sequence[Sequence[Node]]) -> None:
        """Send each rank its chunk of this rank's turn-th node, if there are so many."""
        senders = [rank for rank, theirs in enumerate(nodes) if turn < len(theirs)]
        like = self._bucket.parameters[0]
        sent = self._own[turn].whole if turn < len(self._own) else like.new_empty(0)
        received = like.new_empty(len(senders) * self._chunk)
        output_sizes = [self._chunk if rank in senders else 0 for rank in range(self._groups.size)]
        input_sizes = [sent.numel() // self._groups.size] * self._groups.size
        work = dist.all_to_all_single(
            received, sent, output_sizes, input_sizes, group=self._groups.scatter, async_op=True
        )
        assert work is not None
        self._works.append(work)
        rows = received.view(len(senders), self._chunk).unbind()
        self._received += [(nodes[rank][turn], row) for rank, row in zip(senders, rows, strict=True)]

    @property
    def is_ready(self) -> bool:
        """Tell whether the first half is over, so that `advance` need not wait."""
        return all(work.is_completed() for work in self._works)

    def advance(self) -> None:
        """Wait for the first half, add up, and start the second half."""
        for work in self._works:
            work.wait()
        sums = Sums(self._bucket.sums.num_shards, Tensor.add_)
        for node, row in sorted(self._received, key=lambda pair: pair[0]):
            sums.push(node, row)
        ((_, chunk),) = sums.parts
        # What was sent is no longer needed, so its memory takes the result.
        self._result = self._own[0] if self._own else self._bucket.unused()
        work = dist.all_gather_into_tensor(self._result.whole, chunk, group=self._groups.gather, async_op=True)
        assert work is not None
        self._works = [work]

    def finish(self) -> None:
        """Wait for the second half and leave the result in the parameters."""
        assert self._result is not None
        for work in self._works:
            work.wait()
        self._bucket.give(self._result)
