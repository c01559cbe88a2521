"""Writes checkpoints in the background while training continues, from a copy of the state that is reused."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from paceline.engine.checkpoint import Checkpoints
from paceline.engine.checkpoint_folder import Captured
from paceline.parallel.team import Team


class BackgroundSaver:
    """Writes one checkpoint at a time; training waits only while its state is copied.

    `team` is used by no other thread: ranks that write shards exchange messages in the background.
    """

    def __init__(self, checkpoints: Checkpoints, team: Team) -> None:
        self._checkpoints, self._team = checkpoints, team
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None
        self._copies: dict[str, Tensor] = {}

    def save(self, captured: Captured, **facts: Any) -> None:
        """Copy what this rank writes, and return; a failure of the previous save is raised here."""
        self.wait()
        copied = captured.copied(self._copy, is_lead=self._team.is_lead)
        self._pending = self._thread.submit(self._checkpoints.save, copied, self._team, **facts)

    def _copy(self, name: str, tensor: Tensor) -> Tensor:
        """Copy a tensor into the memory of the last copy, if there is one of its kind."""
        copy = self._copies.get(name)
        if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
            copy = torch.empty(tensor.shape, dtype=tensor.dtype)
            copy = self._copies[name] = copy.pin_memory() if tensor.device.type == "cuda" else copy
        return copy.copy_(tensor)

    def wait(self) -> None:
        """Wait until the pending save is on disk."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Finish the last save, end the thread and free the copies."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
            self._copies.clear()
