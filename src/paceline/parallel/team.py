"""The ranks of a run as one team. A lone rank is a team of one, so callers need no special case."""

import hashlib
import math
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
from paceline.parallel.hops import from_lead, joined_on_lead
from paceline.parallel.wire import Wire

T = TypeVar("T")


class Team:
    """Collectives of a run. Each is announced: every rank must call it, in the same order.

    Control messages are sent point to point over gloo (`control` is its group, None the default one), so that they wait
    neither for gradients nor for a GPU. Each takes log2 W rounds.
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
        self._wire = Wire(control, rank=world.rank, size=world.size)
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
        return bool(self._wait(lambda: self._wire.largest((int(flag),)))[0])

    def barrier(self) -> None:
        """Wait until every rank is here. Collective: every rank must call it."""
        if self.world.size > 1:
            self._wire.settle()
            self._wait(lambda: self._wire.largest((0,)))

    def poll(self, flag: bool) -> bool:  # noqa: FBT001 - the flag is the argument
        """Like `any`, but with the flags of an earlier call, so that no rank waits. Collective.

        All ranks learn of a flag in the same call: one or two calls later if these are far apart, else after log2 W to
        2·log2 W calls, of which each sends one message.
        """
        return flag if self.world.size == 1 else self._wire.poll(int(flag))

    def same(self, bits: int) -> bool:
        """Tell every rank whether all have the same 63 bits: 16 bytes at any world size. Collective."""
        if self.world.size == 1:
            return True
        largest, negated = self._wait(lambda: self._wire.largest((bits, -bits)))
        return largest == -negated

    def gather_on_lead(self, value: T) -> list[T] | None:
        """Return the values of all ranks on rank 0, elsewhere None. Collective: every rank must call it."""
        return self._joined([value], lambda left, right: left + right)

    def total(self, value: T, add: Callable[[list[T]], T]) -> T:
        """Return what `add` makes of the values of all ranks, two at a time, on every rank. Collective."""
        joined = self._joined(value, lambda left, right: add([left, right]))
        return self.from_lead(value if joined is None else joined)

    def _joined(self, value: T, join: Callable[[T, T], T]) -> T | None:
        rank, size = self.world.rank, self.world.size
        return self._wait(lambda: self._wire.carry(joined_on_lead(value, join, rank=rank, size=size)))

    def start_sum(self, numbers: torch.Tensor) -> dist.Work | None:
        """Start to add numbers over all ranks, in place; None if there is nothing to wait for. Collective."""
        return None if self.world.size == 1 else dist.all_reduce(numbers, group=self._control, async_op=True)

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in the order of ranks. Collective: every rank must call it."""
        found = self.gather_on_lead(value)
        return self.from_lead([] if found is None else found)

    def from_lead(self, value: T) -> T:
        """Return the value of rank 0. Collective: every rank must call it."""
        if self.world.size == 1:
            return value
        rank, size = self.world.rank, self.world.size
        return self._wait(lambda: self._wire.carry(from_lead(value, rank=rank, size=size)))

    def broadcast(self, tensor: torch.Tensor, *, source: int = 0) -> None:
        """Fill a tensor in main memory with that of a rank. Collective: every rank must call it."""
        if self.world.size > 1:
            self._wait(lambda: dist.broadcast(tensor, src=source, group=self._control))

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
