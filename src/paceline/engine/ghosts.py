"""Ghost batch norm within a step: every shard starts from the same buffers, and their changes are averaged."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from torch import nn

from paceline.parallel.buffers import GhostBuffers
from paceline.parallel.team import Team


class Shares(Protocol):
    """A step whose batch is computed part by part."""

    def shard(self, weight: float, /) -> AbstractContextManager[None]:
        """Return the context of the next part; `weight` is that of its loss."""
        ...


class Ghosts:
    """The buffers of one step whose parts are shards. Leaving it is collective: every rank must."""

    def __init__(self, model: nn.Module, team: Team, *, scale: float) -> None:
        self._buffers = GhostBuffers(model)
        self._team = team
        self._scale = scale

    def __enter__(self) -> "Ghosts":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._buffers.finish(self._team)

    @contextlib.contextmanager
    def shard(self, weight: float) -> Iterator[None]:
        """Run one shard; `weight` is that of its loss, `scale` makes it the shard's share of the images."""
        self._buffers.reset()
        yield
        self._buffers.collect(weight * self._scale)


class NoGhosts:
    """A step whose buffers are left to the model."""

    def __enter__(self) -> "NoGhosts":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was changed."""

    def shard(self, _weight: float) -> AbstractContextManager[None]:
        """Run one part of the batch."""
        return NOTHING


NOTHING = contextlib.nullcontext()
NO_GHOSTS = NoGhosts()
