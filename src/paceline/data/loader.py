"""Batches in the order asked for, prepared here or ahead of time by worker processes: the result is the same."""

import os
import signal
from collections.abc import Iterator, Sequence
from types import FrameType

from torch.utils.data import DataLoader, Dataset

from paceline.data.split import Batch, Ids, Split

Request = tuple[Ids, int | None]
"""The ids of a batch, and the epoch (None to evaluate)."""


def load_batches(split: Split, requests: Sequence[Request], *, workers: int, pin: bool) -> Iterator[Batch]:
    """Yield the requested batches in order."""
    if workers == 0:
        return _load_here(split, requests, pin=pin)
    return _load_ahead(split, requests, workers=workers, pin=pin)


def _load_here(split: Split, requests: Sequence[Request], *, pin: bool) -> Iterator[Batch]:
    for ids, epoch in requests:
        batch = split.fetch(ids, epoch)
        yield batch.pin_memory() if pin else batch


def _load_ahead(split: Split, requests: Sequence[Request], *, workers: int, pin: bool) -> Iterator[Batch]:
    loader = DataLoader(
        _Fetcher(split, requests),
        batch_size=None,
        shuffle=False,
        num_workers=min(workers, len(requests)),
        pin_memory=pin,
        persistent_workers=False,
        worker_init_fn=_leave_stopping_to_the_rank,
    )
    for batch in loader:
        if isinstance(batch, Exception):
            raise batch
        yield batch


def _leave_stopping_to_the_rank(_worker: int) -> None:
    """Let the first signal pass: Slurm and Ctrl-C signal every process, but the rank still needs the step's batches.

    The second ends the worker at once: it comes from a rank that has waited for it in vain.
    """
    seen: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if seen:
            os._exit(128 + number)
        seen.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)


class _Fetcher(Dataset[Batch | Exception]):
    """What a worker process holds. A failure travels as a value, so that it arrives with its own message and hint."""

    def __init__(self, split: Split, requests: Sequence[Request]) -> None:
        self._split = split
        self._requests = requests

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, index: int) -> Batch | Exception:
        ids, epoch = self._requests[index]
        try:
            return self._split.fetch(ids, epoch)
        except Exception as problem:  # noqa: BLE001 - handed to the training process, which raises it
            return problem
