"""Batches in the requested order, prepared in this process or ahead of time by workers: the result is the same."""

import gc
import os
import signal
from collections.abc import Iterator
from functools import partial
from types import FrameType

import numpy as np
from torch.utils.data import DataLoader, Dataset

from paceline.core.first_cause import explain_lost_worker, keep_places
from paceline.core.processes import end_with_parent
from paceline.data.requests import RequestGroup, RequestGroups, Requests
from paceline.data.split import GroupingSplit, Split, fetch_unfinished
from paceline.data.tree import Tree, pinned, rows


def load_batches(split: Split, requests: Requests, *, workers: int, pin: bool) -> Iterator[Tree]:
    """Yield the requested batches, all of one epoch, in order."""
    groups = RequestGroups.make(requests, split.group_size if isinstance(split, GroupingSplit) else 1)
    workers = min(workers, len(groups))
    if workers == 0:
        return _load_here(split, groups, pin=pin)
    return _load_ahead(split, groups, workers=workers, pin=pin)


def fetch_group(split: Split, group: RequestGroup) -> list[Tree]:
    """Return the batches of a group, prepared together: a sample does not depend on the rest of its batch.

    `moved` finishes them.
    """
    ids, epoch = group[0]
    if len(group) == 1:
        return [fetch_unfinished(split, ids, epoch)]
    whole = fetch_unfinished(split, np.concatenate([ids for ids, _ in group]), epoch)
    ends = np.cumsum([len(ids) for ids, _ in group]).tolist()
    return [rows(whole, slice(start, end)) for start, end in zip([0, *ends], ends, strict=False)]


def _load_here(split: Split, groups: RequestGroups, *, pin: bool) -> Iterator[Tree]:
    for group in groups:
        for batch in fetch_group(split, group):
            yield pinned(batch) if pin else batch


def _load_ahead(split: Split, groups: RequestGroups, *, workers: int, pin: bool) -> Iterator[Tree]:
    loader = DataLoader(
        _Fetcher(split, groups),
        batch_size=None,
        shuffle=False,
        num_workers=workers,
        pin_memory=pin,
        persistent_workers=False,
        multiprocessing_context="fork",  # the default since Python 3.14 starts workers from a process in between
        worker_init_fn=partial(_start_worker, os.getpid()),
    )
    gc.freeze()  # else a worker may garbage-collect objects of this process, such as the connections of an earlier run
    try:
        prepared = iter(loader)
    finally:
        gc.unfreeze()
    while True:
        try:
            batches = next(prepared, None)
        except RuntimeError as problem:
            explained = explain_lost_worker(problem)
            if explained is None:
                raise
            raise explained from problem
        if batches is None:
            return
        if isinstance(batches, Exception):
            raise batches
        yield from batches


def _start_worker(rank_pid: int, _worker: int) -> None:
    """End with the rank, and ignore one signal: Slurm and Ctrl-C signal every process, but the rank needs the batches.

    A second signal exits at once: the rank has given up waiting.
    """
    end_with_parent(signal.SIGKILL, parent=rank_pid)  # torch looks for the parent only between two samples
    seen: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if seen:
            os._exit(128 + number)
        seen.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)


class _Fetcher(Dataset[list[Tree] | Exception]):
    """The data set of a worker process. It returns errors as values, which keeps their message and hint."""

    def __init__(self, split: Split, groups: RequestGroups) -> None:
        self._split = split
        self._groups = groups

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, index: int) -> list[Tree] | Exception:
        try:
            return fetch_group(self._split, self._groups[index])
        except Exception as problem:  # noqa: BLE001 - handed to the training process, which raises it
            return keep_places(problem)
