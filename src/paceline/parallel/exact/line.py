"""The ranks in a line, each connected with its neighbours: sums go to the middle, and the sum of all goes back."""

from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor

from paceline.parallel.team import Team

Way = Literal["inward", "outward"]


class Line:
    """What neighbours send each other. Making it is collective: every rank must.

    A lane is a process group that carries what goes from one rank to the next in one way. On each, both must send and
    receive in the same order, but lanes do not wait for each other: a rank may be ahead on one and behind on another.
    """

    def __init__(self, team: Team) -> None:
        self.rank, self.num_ranks = team.world.rank, team.world.size
        self.middle = sorted({(self.num_ranks - 1) // 2, self.num_ranks // 2})
        """The one or two ranks where the halves meet; where there are two, each adds up half of the numbers."""
        self._lanes: dict[tuple[int, int, Way], Any] = {}
        for left in range(self.num_ranks - 1):
            for source, target in ((left, left + 1), (left + 1, left)):
                for way in self._ways(source, target):
                    self._lanes[source, target, way] = team.group([left, left + 1])

    def _ways(self, source: int, target: int) -> list[Way]:
        """Return which ways lead from a rank to its neighbour: both, between the two ranks in the middle."""
        nearer = {abs(root - target) < abs(root - source) for root in self.middle}
        return ["inward" if comes_nearer else "outward" for comes_nearer in sorted(nearer)]

    def send(self, numbers: Tensor, target: int, way: Way) -> dist.Work:
        """Start to send numbers to a neighbour."""
        return self._move(numbers, self.rank, target, way)

    def receive(self, numbers: Tensor, source: int, way: Way) -> dist.Work:
        """Start to receive numbers from a neighbour."""
        return self._move(numbers, source, self.rank, way)

    def _move(self, numbers: Tensor, source: int, target: int, way: Way) -> dist.Work:
        # A broadcast among two, because gloo cannot tell whether what `irecv` started is over.
        work = dist.broadcast(numbers, source, group=self._lanes[source, target, way], async_op=True)
        assert work is not None
        return work
