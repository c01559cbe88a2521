"""Evidence of data loading: which samples each rank gets, in which order, with which random numbers."""

import multiprocessing
import time
from typing import Any

import torch
from paceline_attach import journal
from paceline_attach.callsite import callsite
from paceline_attach.listener import Listener, progress
from torch.utils.data import _utils, dataloader

from . import early
from .clocks import threads_of_script
from .digests import Generators, WorkerSeed, dataset_facts, digest_leaves, generator_states
from .rank_end import end_rank
from .settings import BATCH_FACTOR, EPOCHS, EVAL_BATCHES, LARGEST_ORDER, TRAIN_BATCHES

MOST_DIGESTS = 4
MOST_FETCHES = 3


class Iteration:
    """One pass over a loader."""

    def __init__(self, loader: int, nth: int, workers: int, seed: int) -> None:
        self.loader, self.nth, self.workers, self.seed = loader, nth, workers, seed
        self.batches: list[list[int]] = []
        self.digests: list[list[int]] = []
        self.num_samples = 0
        self.num_fetches = 0
        self.trained = self.whole = False
        self.generators: Generators | None = None

    def add(self, index: Any) -> None:
        """Add the indices of a batch."""
        if self.num_samples >= LARGEST_ORDER:
            return
        if hasattr(index, "__index__"):
            index = [index]
        if isinstance(index, list | tuple) and all(hasattr(item, "__index__") for item in index):
            self.batches.append([int(item) for item in index])
            self.num_samples += len(index)


class Samples(Listener):
    """Follows the loaders of this process."""

    def __init__(self) -> None:
        self.num_loaders = 0
        self.active: dict[int, Any] = {}
        self.training: set[int] = set()
        """Loaders whose batches were trained on."""
        self.epochs: dict[int, int] = {}
        self.last: int | None = None
        """The loader of the last batch."""
        self.current: Any = None
        self._began = 0.0

    def add_loader(self, loader: Any, workers: int, asked: int | None, *, forks: bool) -> None:
        """Number a new loader, with the workers and the batch size that the script asked for."""
        loader.__dict__["_paceline_forks"] = forks and workers > 0
        loader.__dict__.update(_paceline_loader=self.num_loaders, _paceline_workers=workers, _paceline_passes=0)
        sampler = loader.sampler if loader.batch_sampler is not None else None
        journal.put(
            "loader",
            loader=self.num_loaders,
            site=callsite(3),
            length=_length(loader.dataset),
            sampler=type(sampler).__name__,
            batch=loader.batch_size,
            asked=asked,
            drop_last=loader.drop_last,
            workers=workers,
            iterable=isinstance(loader.dataset, torch.utils.data.IterableDataset),
        )
        self.num_loaders += 1

    def start_pass(self, iterator: Any, loader: Any) -> None:
        """Follow a new pass over a loader."""
        if torch.utils.data.get_worker_info() is not None:
            return
        number = loader.__dict__.get("_paceline_loader", -1)
        self.end_pass(number)
        if self.epochs.get(number, 0) >= EPOCHS:
            end_rank("epochs")
        nth = loader.__dict__.get("_paceline_passes", 0)
        loader.__dict__["_paceline_passes"] = nth + 1
        iterator.__dict__["_paceline"] = Iteration(
            number, nth, loader.__dict__.get("_paceline_workers", 0), iterator._base_seed
        )
        self.active[number] = iterator
        journal.put(
            "pass",
            loader=number,
            nth=nth,
            site=callsite(3),
            epoch=getattr(getattr(loader, "sampler", None), "epoch", None),
            facts=dataset_facts(loader.dataset) if nth == 0 and journal.rank is not None else None,
            step=progress.steps,
            serial=early.state.serial,
            threads=threads_of_script() if loader.__dict__.get("_paceline_forks") else [],
        )

    def fetching(self, iterator: Any) -> None:
        """Cut the epoch after a few batches."""
        self.current, self._began = iterator, time.perf_counter()
        mine = iterator.__dict__.get("_paceline")
        if mine is None:
            return
        most = TRAIN_BATCHES if mine.trained else EVAL_BATCHES
        if iterator._num_yielded >= most:
            self._read_order(iterator, mine)
            self.end_pass(mine.loader)
            raise StopIteration

    def _read_order(self, iterator: Any, mine: Iteration) -> None:
        """Read the rest of the order without the data."""
        if iterator._dataset_kind == dataloader._DatasetKind.Iterable:
            return
        try:
            while mine.num_samples < LARGEST_ORDER:
                mine.add(next(iterator._sampler_iter))
        except (StopIteration, RuntimeError, TypeError):
            mine.whole = True

    def fetched(self, iterator: Any, batch: Any) -> None:
        """Note the content of a batch."""
        mine = iterator.__dict__.get("_paceline")
        if mine is None:
            return
        if batch is None:
            mine.whole = True
            self.end_pass(mine.loader)
            return
        self.last = mine.loader
        journal.put("waited", loader=mine.loader, seconds=round(time.perf_counter() - self._began, 6))
        if len(mine.digests) < MOST_DIGESTS:
            mine.digests.append(digest_leaves(batch))

    def end_pass(self, number: int) -> None:
        """Write the order of a pass."""
        iterator = self.active.pop(number, None)
        if iterator is None:
            return
        mine: Iteration = iterator.__dict__.pop("_paceline")
        self.epochs[number] = self.epochs.get(number, 0) + mine.trained
        journal.put(
            "order",
            loader=mine.loader,
            nth=mine.nth,
            trained=mine.trained,
            whole=mine.whole,
            batches=mine.batches,
            yielded=iterator._num_yielded,
            digests=mine.digests,
            step=progress.steps,
            serial=early.state.serial,
        )

    def backward_starts(self, root: Any) -> None:
        """The last batch is trained on."""
        del root
        if self.last is None:
            return
        if self.last not in self.training:
            self.training.add(self.last)
            journal.put("trains_on", loader=self.last)
        iterator = self.active.get(self.last)
        if iterator is not None:
            iterator.__dict__["_paceline"].trained = True

    def exiting(self) -> None:
        """Write the orders of unfinished passes."""
        for number in list(self.active):
            self.end_pass(number)


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:
        return None


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
        if mine is None or torch.utils.data.get_worker_info() is not None:
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
    before = generator_states()
    batch = fetch()
    after = generator_states()
    journal.put(
        "fetch",
        loader=mine.loader,
        nth=mine.nth,
        fetch=mine.num_fetches,
        before=before,
        moved=[name for name in before if before[name] != after.get(name)],
        indices=[int(item) for item in index][:4] if isinstance(index, list) else None,
    )
    return batch
