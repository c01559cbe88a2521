"""Batches in the requested order, prepared in this process or ahead of time by workers: the result is the same."""

import gc
import os
import signal
from collections.abc import Iterator, Sequence
from types import FrameType

import numpy as np
from torch.utils.data import DataLoader, Dataset

from paceline.data.split import Batch, GroupingSplit, Ids, Split

Request = tuple[Ids, int | None]
"""The ids of a batch, and the epoch (None to evaluate)."""
RequestGroup = Sequence[Request]
"""Requests of one epoch that are prepared together."""


def load_batches(split: Split, requests: Sequence[Request], *, workers: int, pin: bool) -> Iterator[Batch]:
    """Yield the requested batches in order."""
    groups = list(group_requests(requests, split.group_size if isinstance(split, GroupingSplit) else 1))
    if workers == 0:
        return _load_here(split, groups, pin=pin)
    return _load_ahead(split, groups, workers=workers, pin=pin)


def group_requests(requests: Sequence[Request], most: int) -> Iterator[RequestGroup]:
    """Group consecutive requests of an epoch, up to `most` samples in a group."""
    group: list[Request] = []
    num_ids = 0
    for ids, epoch in requests:
        if group and (num_ids + len(ids) > most or epoch != group[-1][1]):
            yield group
            group, num_ids = [], 0
        group.append((ids, epoch))
        num_ids += len(ids)
    if group:
        yield group


def fetch_group(split: Split, group: RequestGroup) -> list[Batch]:
    """Return the batches of a group, prepared together: a sample does not depend on the rest of its batch."""
    ids, epoch = group[0]
    if len(group) == 1:
        return [split.fetch(ids, epoch)]
    whole = split.fetch(np.concatenate([ids for ids, _ in group]), epoch)
    ends = np.cumsum([len(ids) for ids, _ in group]).tolist()
    return [whole.select(slice(start, end)) for start, end in zip([0, *ends], ends, strict=False)]


def _load_here(split: Split, groups: Sequence[RequestGroup], *, pin: bool) -> Iterator[Batch]:
    for group in groups:
        for batch in fetch_group(split, group):
            yield batch.pin_memory() if pin else batch


def _load_ahead(split: Split, groups: Sequence[RequestGroup], *, workers: int, pin: bool) -> Iterator[Batch]:
    loader = DataLoader(
        _Fetcher(split, groups),
        batch_size=None,
        shuffle=False,
        num_workers=min(workers, len(groups)),
        pin_memory=pin,
        persistent_workers=False,
        worker_init_fn=_ignore_first_signal,
    )
    gc.freeze()  # else a worker may garbage-collect objects of this process, such as the connections of an earlier run
    try:
        prepared = iter(loader)
    finally:
        gc.unfreeze()
    for batches in prepared:
        if isinstance(batches, Exception):
            raise batches
        yield from batches


def _ignore_first_signal(_worker: int) -> None:
    """Ignore one signal: Slurm and Ctrl-C signal every process, but the rank still needs the step's batches.

    A second signal exits at once: the rank has given up waiting.
    """
    seen: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if seen:
            os._exit(128 + number)
        seen.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)


class _Fetcher(Dataset[list[Batch] | Exception]):
    """The data set of a worker process. It returns errors as values, which keeps their message and hint."""

    def __init__(self, split: Split, groups: Sequence[RequestGroup]) -> None:
        self._split = split
        self._groups = groups

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, index: int) -> list[Batch] | Exception:
        try:
            return fetch_group(self._split, self._groups[index])
        except Exception as problem:  # noqa: BLE001 - handed to the training process, which raises it
            return problem
