"""The way of gradients over the ranks: every rank adds up its chunk over the fixed tree, then all get all chunks.

The first half moves what a ring's reduce-scatter moves, as long as each rank has one node to send; the second half is a
ring's all-gather. Nothing waits here unless asked to: the backward pass goes on meanwhile.
"""

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from paceline.parallel.exact.tree import Node, Sums

all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name until torch 2.12


class Lanes:
    """Two process groups: a rank may be ahead with the first half of one exchange and behind with another's second.

    Making it is collective: every rank must.
    """

    def __init__(self) -> None:
        self.scatter: Any = dist.group.WORLD
        self.gather: Any = dist.new_group()
        self.num_ranks = dist.get_world_size()


class Exchange:
    """A piece of memory on its way. Starting and advancing are collective: every rank must do both, in one order."""

    def __init__(self, sums: Sequence[Tensor], result: Tensor, nodes: Sequence[Sequence[Node]], lanes: Lanes) -> None:
        """Start to send `sums`, those of this rank's nodes; `nodes` are those of all ranks.

        `result` will hold the sum of all. It may be one of `sums`: when it is written, they have been sent.
        """
        self._sums = sums
        self._result = result
        self._lanes = lanes
        self._num_shards = max(theirs[-1].stop for theirs in nodes if theirs)
        self._chunk = len(result) // lanes.num_ranks
        self._works: list[dist.Work] = []
        self._received: list[tuple[Node, Tensor]] = []
        for turn in range(max(map(len, nodes))):
            self._send(turn, nodes)

    def _send(self, turn: int, nodes: Sequence[Sequence[Node]]) -> None:
        """Send each rank its chunk of this rank's turn-th node, if there are so many, and get theirs."""
        senders = [rank for rank, theirs in enumerate(nodes) if turn < len(theirs)]
        sent = self._sums[turn] if turn < len(self._sums) else self._result.new_empty(0)
        received = self._result.new_empty(len(senders) * self._chunk)
        num_ranks = self._lanes.num_ranks
        output_sizes = [self._chunk if rank in senders else 0 for rank in range(num_ranks)]
        input_sizes = [len(sent) // num_ranks] * num_ranks
        group = self._lanes.scatter
        work = dist.all_to_all_single(received, sent, output_sizes, input_sizes, group=group, async_op=True)
        self._works.append(_started(work))
        rows = received.view(len(senders), self._chunk).unbind()
        self._received += [(nodes[rank][turn], row) for rank, row in zip(senders, rows, strict=True)]

    @property
    def is_ready(self) -> bool:
        """Tell whether the first half is over, so that `advance` need not wait."""
        return all(work.is_completed() for work in self._works)

    def advance(self) -> None:
        """Wait for the first half, add up this rank's chunk, and start the second half."""
        self.wait()
        sums = Sums(self._num_shards, Tensor.add_)
        for node, row in sorted(self._received, key=lambda pair: pair[0]):
            sums.push(node, row)
        ((_, chunk),) = sums.parts
        self._works = [_started(all_gather(self._result, chunk, group=self._lanes.gather, async_op=True))]

    def wait(self) -> None:
        """Wait for the half that was started last."""
        for work in self._works:
            work.wait()


def _started(work: dist.Work | None) -> dist.Work:
    assert work is not None
    return work
