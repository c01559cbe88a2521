"""The ranks of a run as one team. A lone rank is a team of one, so callers need no special case."""

import hashlib
import math
import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from paceline.core.errors import ConfigError
from paceline.core.stopping import wait_interruptibly
from paceline.core.world import World
from paceline.parallel.device import cores

T = TypeVar("T")
MOST_VOTING = 16
"""The number of ranks up to which a stop is decided within two steps."""
SECONDS_BETWEEN_VOTES = 0.1
MOST_STEPS_BETWEEN_VOTES = 64


class Team:
    """Collectives of a run. Each is announced: every rank must call it, in the same order.

    Control messages use a separate gloo group, so that they wait neither for gradients nor for a GPU.
    """

    def __init__(
        self, world: World, device: torch.device, control: Any = None, timeout: timedelta | None = None
    ) -> None:
        self.world = world
        self.device = device
        self.num_sharing = world.local_size
        """Number of ranks that share the cores of this one, including itself."""
        self._control = control
        self._timeout = timeout
        self._vote: tuple[torch.Tensor, dist.Work] | None = None
        self._steps_between_votes = self._steps_until_vote = 1
        self._last_vote = time.monotonic()
        self._asked: Callable[[], int | None] | None = None

    @property
    def is_lead(self) -> bool:
        """Tell whether this is rank 0."""
        return self.world.is_lead

    @property
    def timeout(self) -> float:
        """Seconds after which a rank gives up waiting for another."""
        return math.inf if self._timeout is None else self._timeout.total_seconds()

    @contextmanager
    def starting(self, asked: Callable[[], int | None]) -> Iterator[None]:
        """Let a signal end every wait for other ranks while the block runs: nothing is lost before the first step.

        `asked` returns the signal that was caught between two waits. The wait ends with StoppedError.
        """
        self._asked = asked
        try:
            yield
        finally:
            self._asked = None

    def _wait(self, work: Callable[[], T]) -> T:
        if self._asked is None:
            return work()
        return wait_interruptibly(work, f"rank {self.world.rank} was waiting for other ranks to start", self._asked)

    def any(self, flag: bool) -> bool:  # noqa: FBT001 - the flag is the argument
        """Tell every rank whether the flag is set on any of them. Collective: every rank must call it."""
        if self.world.size == 1:
            return flag
        vote = torch.tensor([int(flag)])
        self._wait(lambda: dist.all_reduce(vote, op=dist.ReduceOp.MAX, group=self._control))
        return bool(vote.item())

    def barrier(self) -> None:
        """Wait until every rank is here. Collective: every rank must call it."""
        if self.world.size > 1:
            self._wait(lambda: dist.barrier(group=self._control))

    def poll(self, flag: bool) -> bool:  # noqa: FBT001 - the flag is the argument
        """Like `any`, but with the flags of an earlier call, so that no rank waits. Collective.

        Up to MOST_VOTING ranks vote in every call. More ranks vote about every SECONDS_BETWEEN_VOTES: each vote also
        agrees on the number of calls until the next.
        """
        if self.world.size == 1:
            return flag
        self._steps_until_vote -= 1
        if self._steps_until_vote > 0:
            return False
        answer, wanted = False, self._wanted_steps()
        if self._vote is not None:
            vote, work = self._vote
            work.wait()
            answer, self._steps_between_votes = bool(vote[0].item()), -int(vote[1].item())
        vote = torch.tensor([int(flag), -wanted])
        work = dist.all_reduce(vote, op=dist.ReduceOp.MAX, group=self._control, async_op=True)
        assert work is not None
        self._vote = (vote, work)
        self._steps_until_vote = self._steps_between_votes
        return answer

    def _wanted_steps(self) -> int:
        """Return the number of steps of this rank's speed between two votes; the smallest number of any rank counts."""
        now = time.monotonic()
        seconds, self._last_vote = max(now - self._last_vote, 1e-6), now
        if self.world.size <= MOST_VOTING:
            return 1
        wanted = int(self._steps_between_votes * SECONDS_BETWEEN_VOTES / seconds)
        return max(1, min(wanted, 2 * self._steps_between_votes, MOST_STEPS_BETWEEN_VOTES))

    def same(self, bits: int) -> bool:
        """Tell every rank whether all have the same 63 bits: 16 bytes at any world size. Collective."""
        if self.world.size == 1:
            return True
        ends = torch.tensor([bits, -bits])
        self._wait(lambda: dist.all_reduce(ends, op=dist.ReduceOp.MAX, group=self._control))
        largest, negated = ends.tolist()
        return largest == -negated

    def gather_on_lead(self, value: T) -> list[T] | None:
        """Return the values of all ranks on rank 0, elsewhere None. Collective: every rank must call it."""
        if self.world.size == 1:
            return [value]
        content = pickle.dumps(value)
        length = torch.tensor([len(content)])
        self._wait(lambda: dist.all_reduce(length, op=dist.ReduceOp.MAX, group=self._control))
        own = torch.zeros(int(length.item()), dtype=torch.uint8)
        own[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        found = [torch.empty_like(own) for _ in range(self.world.size)] if self.world.rank == 0 else None
        self._wait(lambda: dist.gather(own, found, dst=0, group=self._control))
        return None if found is None else [pickle.loads(each.numpy().tobytes()) for each in found]

    def total(self, value: T, add: Callable[[list[T]], T]) -> T:
        """Return what `add` makes of the values of all ranks, computed by rank 0. Collective."""
        found = self.gather_on_lead(value)
        return self.from_lead(value if found is None else add(found))

    def start_sum(self, numbers: torch.Tensor) -> dist.Work | None:
        """Start to add numbers over all ranks, in place; None if there is nothing to wait for. Collective."""
        return None if self.world.size == 1 else dist.all_reduce(numbers, group=self._control, async_op=True)

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in the order of ranks. Collective: every rank must call it."""
        if self.world.size == 1:
            return [value]
        values: list[Any] = [None] * self.world.size
        self._wait(lambda: dist.all_gather_object(values, value, group=self._control))
        return values

    def from_lead(self, value: T) -> T:
        """Return the value of rank 0. Collective: every rank must call it."""
        if self.world.size == 1:
            return value
        values: list[Any] = [value]
        self._wait(lambda: dist.broadcast_object_list(values, src=0, group=self._control))
        return values[0]

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Fill a tensor in main memory with that of rank 0. Collective: every rank must call it."""
        if self.world.size > 1:
            self._wait(lambda: dist.broadcast(tensor, src=0, group=self._control))

    def add(self, tensor: torch.Tensor) -> None:
        """Add a tensor in main memory to those of all ranks, in place. Collective: every rank must call it."""
        if self.world.size > 1:
            self._wait(lambda: dist.all_reduce(tensor, group=self._control))

    def for_thread(self) -> "Team":
        """Return the same ranks with separate connections, for another thread. Collective."""
        group: Any = dist.new_group(backend="gloo", timeout=self._timeout) if self.world.size > 1 else None
        return Team(self.world, self.device, group, self._timeout)

    def count_neighbours(self) -> None:
        """Count the ranks that share these cores, which launchers may not set. Collective."""
        everyone = self.gather((self.world.host, cores()))
        self.num_sharing = sum(host == self.world.host and bool(theirs & cores()) for host, theirs in everyone)

    def agree(self, facts: Mapping[str, Any]) -> None:
        """Refuse ranks that differ in facts that must be the same. Collective: every rank must call it."""
        if self.same(_hashed(sorted((name, str(value)) for name, value in facts.items()))):
            return
        everyone = self.gather(dict(facts))
        for name in dict.fromkeys(name for theirs in everyone for name in theirs):
            values = [theirs.get(name, "not set") for theirs in everyone]
            other = next((rank for rank, value in enumerate(values) if value != values[0]), None)
            if other is not None:
                raise ConfigError(
                    f"the ranks do not agree: {name} is {values[0]} on rank 0 and {values[other]} on rank {other}",
                    hint="start every rank with the same settings and versions",
                )


def _hashed(value: object) -> int:
    """Return 63 bits that depend on the text of a value."""
    return int.from_bytes(hashlib.sha256(repr(value).encode(), usedforsecurity=False).digest()[:8], "little") >> 1
