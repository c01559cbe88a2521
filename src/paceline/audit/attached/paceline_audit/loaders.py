"""Wraps loaders and their iterators, so that `Samples` hears of every pass, index and batch."""

import multiprocessing
from typing import Any

import torch
from paceline_attach import journal
from torch.utils.data import _utils, dataloader

from .random_state import Generators, WorkerSeed, generator_states, set_by_script
from .samples import Iteration, Samples
from .settings import BATCH_FACTOR

MOST_FETCHES = 3


def follow(samples: Samples) -> None:
    """Wrap loaders and their iterators."""
    _follow_loaders(samples)
    _follow_passes(samples)
    _follow_orders()
    _follow_fetches(samples)


def _follow_loaders(samples: Samples) -> None:
    make = dataloader.DataLoader.__init__

    def make_loader(self: Any, *args: Any, **kwargs: Any) -> None:
        workers = kwargs.get("num_workers", args[5] if len(args) > 5 else 0)
        asked = kwargs.get("batch_size", args[1] if len(args) > 1 else 1)
        forks = str(kwargs.get("multiprocessing_context") or multiprocessing.get_start_method()) == "fork"
        if kwargs.get("worker_init_fn") is not None:
            kwargs["worker_init_fn"] = WorkerSeed(kwargs["worker_init_fn"], samples.num_loaders)
        elif workers and len(args) <= 5:  # without workers, whose random numbers are imitated: see `_follow_fetches`
            kwargs.update(num_workers=0, persistent_workers=False, prefetch_factor=None, timeout=0)
            kwargs.pop("multiprocessing_context", None)
        if kwargs.get("batch_sampler") is None and BATCH_FACTOR > 1:
            kwargs.pop("batch_size", None)
            args = (args[0] if args else kwargs.pop("dataset"), asked and asked * BATCH_FACTOR, *args[2:])
        make(self, *args, **kwargs)
        samples.add_loader(self, workers, asked if self.batch_size else None, forks=forks)

    dataloader.DataLoader.__init__ = make_loader


def _follow_passes(samples: Samples) -> None:
    base = dataloader._BaseDataLoaderIter
    start, reset = base.__init__, base._reset

    def start_iterator(self: Any, loader: Any) -> None:
        start(self, loader)
        samples.start_pass(self, loader)

    def reset_iterator(self: Any, loader: Any, first_iter: bool = False) -> None:
        reset(self, loader, first_iter)
        if not first_iter:
            samples.start_pass(self, loader)

    base.__init__, base._reset = start_iterator, reset_iterator


def _follow_orders() -> None:
    base = dataloader._BaseDataLoaderIter
    original = base._next_index

    def next_index(self: Any) -> Any:
        mine = self.__dict__.get("_paceline")
        try:
            found = original(self)
        except StopIteration:
            if mine is not None:
                mine.whole = True
            raise
        if mine is not None:
            mine.add(found)
        return found

    base._next_index = next_index


def _follow_fetches(samples: Samples) -> None:
    """Note the generators before and after samples are made: equal states on two ranks give equal augmentation."""
    fetcher: Any = _utils.fetch._MapDatasetFetcher
    original = fetcher.fetch

    def fetch(self: Any, index: Any) -> Any:
        mine = None if samples.current is None else samples.current.__dict__.get("_paceline")
        if torch.utils.data.get_worker_info() is not None:
            return _noted_in_worker(lambda: original(self, index))
        if mine is None:
            return original(self, index)
        outside = Generators() if mine.workers else None
        if outside is not None:
            if mine.generators is None:
                Generators.seed(mine.seed)
            else:
                mine.generators.restore()
        try:
            return _noted(mine, index, lambda: original(self, index))
        finally:
            if outside is not None:
                mine.generators = Generators()
                outside.restore()

    fetcher.fetch = fetch


def _noted(mine: Iteration, index: Any, fetch: Any) -> Any:
    mine.num_fetches += 1
    if mine.num_fetches > MOST_FETCHES:
        return fetch()
    set_by_script.clear()
    before = generator_states()
    batch = fetch()
    moved = _moved(before)
    journal.put(
        "fetch",
        loader=mine.loader,
        nth=mine.nth,
        fetch=mine.num_fetches,
        before=before,
        moved=moved,
        indices=[int(item) for item in index][:4] if isinstance(index, list) else None,
    )
    return batch


def _moved(before: dict[str, int]) -> list[str]:
    """Return the generators that were used, and not seeded by the data set itself."""
    after = generator_states()
    return [name for name in before if before[name] != after.get(name) and name not in set_by_script]


def _noted_in_worker(fetch: Any) -> Any:
    """Note the generators that a worker uses."""
    if worker_fetches.number >= MOST_FETCHES:
        return fetch()
    worker_fetches.number += 1
    set_by_script.clear()
    before = generator_states()
    batch = fetch()
    journal.put("worker_uses", generators=_moved(before))
    return batch


class _WorkerFetches:
    number = 0


worker_fetches = _WorkerFetches()
