"""The ranks in a line, each connected with its neighbours: sums go to a root in the middle, that of all goes back."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.parallel.team import Team


class Route:
    """The way to one root and back. Making it is collective: every rank must.

    A lane is a process group that carries what goes from one rank to a neighbour. Both must use it in the same order,
    but lanes do not wait for each other: a rank may be ahead on one and behind on another.
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

        NCCL connects two ranks when they first use a group, and lets neither go on before: in a step, each of two ranks
        could wait for the other on another lane.
        """
        for source, target in self._lanes:
            if self.rank in {source, target}:
                self._move(torch.zeros(1, device=device), source, target).wait()

    @property
    def inside(self) -> int:
        """The neighbour that is nearer to the root."""
        return self.rank + (1 if self.rank < self.root else -1)

    @property
    def outside(self) -> tuple[int | None, int | None]:
        """The neighbours that are farther from the root: on the left and on the right."""
        left = self.rank - 1 if 0 < self.rank <= self.root else None
        right = self.rank + 1 if self.root <= self.rank < self.num_ranks - 1 else None
        return left, right

    def send(self, numbers: Tensor, target: int) -> dist.Work:
        """Start to send numbers to a neighbour."""
        return self._move(numbers, self.rank, target)

    def receive(self, numbers: Tensor, source: int) -> dist.Work:
        """Start to receive numbers from a neighbour."""
        return self._move(numbers, source, self.rank)

    def _move(self, numbers: Tensor, source: int, target: int) -> dist.Work:
        # A broadcast among two, because gloo cannot tell whether what `irecv` started is over.
        work = dist.broadcast(numbers, source, group=self._lanes[source, target], async_op=True)
        assert work is not None
        return work


def middle_ranks(num_ranks: int) -> list[int]:
    """Return the one or two ranks where the halves of the batch meet; two share the work of the root."""
    return sorted({(num_ranks - 1) // 2, num_ranks // 2})
