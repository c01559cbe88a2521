"""Control messages on torch.distributed: point to point, so that they do not depend on the order of collectives."""

import pickle
import time
from collections.abc import Generator
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from paceline.parallel.hops import Hop, Numbers, largest

T = TypeVar("T")
SLOW_STEP = 0.1
"""Seconds between two polls, above which a vote makes all its hops in one of them."""
NUMBERS_TAG, LENGTH_TAG, CONTENT_TAG, VOTE_TAG = 0x9A0, 0x9A1, 0x9A2, 0x9A3


class Wire:
    """The connections of a rank for control messages; None is the default process group."""

    def __init__(self, group: Any, *, rank: int, size: int) -> None:
        self._group = group
        self._rank, self._size = rank, size
        self._vote: _Vote | None = None
        self._hops, self._polled = 1, float("inf")

    def largest(self, own: Numbers) -> Numbers:
        """Return the largest of the numbers of all ranks. Collective: every rank must call it."""
        protocol = largest(own, rank=self._rank, size=self._size)
        return _run(protocol, lambda hop: _Numbers(hop, self._group, NUMBERS_TAG).received())

    def carry(self, protocol: Generator[Hop, T, Any]) -> Any:
        """Return the result of a protocol whose messages are objects. Collective: every rank must call it."""
        return _run(protocol, self._carried)

    def poll(self, flag: int) -> bool:
        """Make one hop of a vote, and tell whether it ended with a flag that is set. Collective, but waits for no rank.

        The hop is received in the next call, so that a vote takes log2 W calls. Where a rank's calls are far apart, the
        next vote takes one call: its hops are short beside a step. The next vote starts in the call that ends the one
        before, unless a flag was set: then ranks may leave.
        """
        now = time.monotonic()
        is_slow, self._polled = now - self._polled > SLOW_STEP, now
        for _ in range(self._hops):
            ended = None if self._vote is None else self._vote.advance()
            if ended is not None:
                self._vote, self._hops = None, (self._size - 1).bit_length() if ended[1] else 1
                if ended[0]:
                    return True
            if self._vote is None:
                protocol = largest((flag, int(is_slow)), rank=self._rank, size=self._size)
                self._vote = _Vote(protocol, self._group)
                break
        return False

    def settle(self) -> None:
        """Wait for the hop of a vote that is under way, before a rank leaves. Collective."""
        if self._vote is not None:
            self._vote.settle()

    def _carried(self, hop: Hop) -> Any:
        """Send or receive an object: its length, then its bytes."""
        if hop.to is not None:
            content = bytearray(pickle.dumps(hop.content))
            dist.send(torch.tensor([len(content)]), hop.to, group=self._group, tag=LENGTH_TAG)
            dist.send(torch.frombuffer(content, dtype=torch.uint8), hop.to, group=self._group, tag=CONTENT_TAG)
            return None
        length = torch.zeros(1, dtype=torch.int64)
        dist.recv(length, hop.source, group=self._group, tag=LENGTH_TAG)
        content = torch.empty(int(length.item()), dtype=torch.uint8)
        dist.recv(content, hop.source, group=self._group, tag=CONTENT_TAG)
        return pickle.loads(content.numpy().tobytes())


class _Numbers:
    """A hop of numbers that is under way."""

    def __init__(self, hop: Hop, group: Any, tag: int) -> None:
        assert hop.to is not None
        self._sent, self._found = torch.tensor(hop.content), torch.empty(len(hop.content), dtype=torch.int64)
        sending = dist.isend(self._sent, hop.to, group=group, tag=tag)
        receiving = dist.irecv(self._found, hop.source, group=group, tag=tag)
        self._works = [work for work in (receiving, sending) if work is not None]

    def received(self) -> Numbers:
        """Wait for the hop, and return what it received."""
        while self._works:
            self._works.pop().wait()
        return tuple(self._found.tolist())


class _Vote:
    """A vote that is under way."""

    def __init__(self, protocol: Generator[Hop, Numbers, Numbers], group: Any) -> None:
        self._protocol, self._group = protocol, group
        self._hop = _Numbers(next(protocol), group, VOTE_TAG)

    def advance(self) -> Numbers | None:
        """Receive the hop that was sent, and send the next one; return the result after the last."""
        try:
            hop = self._protocol.send(self._hop.received())
        except StopIteration as ended:
            return ended.value
        self._hop = _Numbers(hop, self._group, VOTE_TAG)
        return None

    def settle(self) -> None:
        """Wait for the hop that is under way."""
        self._hop.received()


def _run(protocol: Generator[Hop, Any, T], make: Any) -> T:
    try:
        hop = next(protocol)
        while True:
            hop = protocol.send(make(hop))
    except StopIteration as ended:
        return ended.value
