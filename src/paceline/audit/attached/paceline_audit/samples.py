"""Evidence of data loading: which samples each rank gets, in which order, with which random numbers."""

import sys
import time
from typing import Any

import torch
from paceline_attach import journal
from paceline_attach.callsite import UNKNOWN, callsite, callsites
from paceline_attach.listener import Listener, progress
from torch.utils.data import dataloader

from . import early
from .clocks import threads_of_script
from .digests import dataset_facts, digest_leaves, digest_sample
from .random_state import Generators
from .rank_end import end_rank
from .settings import EPOCHS, EVAL_BATCHES, LARGEST_ORDER, TRAIN_BATCHES
from .stops import may_stop

MOST_DIGESTS = 4


class Iteration:
    """One pass over a loader."""

    def __init__(self, loader: int, nth: int, workers: int, seed: int, stack: str) -> None:
        self.loader, self.nth, self.workers, self.seed, self.stack = loader, nth, workers, seed, stack
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
        self.epochs: dict[tuple[int, str], int] = {}
        """Passes with training by loader and calling lines: two loops over one loader are not two epochs."""
        self.last: int | None = None
        """The loader of the last batch."""
        self.fetched_since: dict[int, int] = {}
        """Batches of each loader since the last backward pass, without those that were evaluated."""
        self.fetches = 0
        """Batches since the last step."""
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
            samples=None if sampler is None else _length(sampler),
            shuffles=_shuffles(sampler),
            iterable=isinstance(loader.dataset, torch.utils.data.IterableDataset),
        )
        self.num_loaders += 1

    def start_pass(self, iterator: Any, loader: Any) -> None:
        """Follow a new pass over a loader."""
        if torch.utils.data.get_worker_info() is not None:
            return
        number = loader.__dict__.get("_paceline_loader", -1)
        self.end_pass(number)
        stack = callsites(3)
        if self.epochs.get((number, str(stack)), 0) >= EPOCHS:
            end_rank("epochs")
        nth = loader.__dict__.get("_paceline_passes", 0)
        loader.__dict__["_paceline_passes"] = nth + 1
        workers = loader.__dict__.get("_paceline_workers", 0)
        iterator.__dict__["_paceline"] = Iteration(number, nth, workers, iterator._base_seed, str(stack))
        self.active[number] = iterator
        is_first = nth == 0 and journal.rank is not None
        journal.put(
            "pass",
            loader=number,
            nth=nth,
            site=stack[0] if stack else UNKNOWN,
            stack=stack,
            epoch=getattr(getattr(loader, "sampler", None), "epoch", None),
            facts=dataset_facts(loader.dataset) if is_first else None,
            probe=_probe(loader.dataset) if is_first else None,
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
        if iterator._num_yielded >= most and may_stop(sys._getframe(2)):
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
        self.fetches += 1
        if torch.is_grad_enabled():
            self.fetched_since[mine.loader] = self.fetched_since.get(mine.loader, 0) + 1
        journal.put("waited", loader=mine.loader, seconds=round(time.perf_counter() - self._began, 6))
        if len(mine.digests) < MOST_DIGESTS:
            mine.digests.append(digest_leaves(batch))

    def end_pass(self, number: int) -> None:
        """Write the order of a pass."""
        iterator = self.active.pop(number, None)
        if iterator is None:
            return
        mine: Iteration = iterator.__dict__.pop("_paceline")
        self.epochs[number, mine.stack] = self.epochs.get((number, mine.stack), 0) + mine.trained
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

    def forward_starts(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, training: bool) -> None:
        """A batch that is evaluated is not trained on."""
        del model, args, kwargs, training
        if not torch.is_grad_enabled() and self.last is not None:
            self.fetched_since.pop(self.last, None)

    def backward_starts(self, root: Any) -> None:
        """The last batch is trained on, and so is a single one of another loader that came with it."""
        del root
        found = {number for number, count in self.fetched_since.items() if count == 1}
        self.fetched_since.clear()
        for number in found | ({self.last} if self.last is not None else set()):
            if number not in self.training:
                self.training.add(number)
                journal.put("trains_on", loader=number)
            iterator = self.active.get(number)
            if iterator is not None:
                iterator.__dict__["_paceline"].trained = True

    def step_ends(self, optimizer: Any) -> None:
        """Count the batches of the next step."""
        del optimizer
        self.fetches = 0

    def exiting(self) -> None:
        """Write the orders of unfinished passes."""
        for number in list(self.active):
            self.end_pass(number)


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:
        return None


def _shuffles(sampler: Any) -> bool:
    """Tell whether a sampler is one of torch that shuffles."""
    if isinstance(sampler, torch.utils.data.DistributedSampler):
        return sampler.shuffle
    return isinstance(sampler, torch.utils.data.RandomSampler)


def _probe(dataset: Any) -> list[list[int]] | None:
    """Return digests of the first, the middle and the last sample, made with the same random numbers on all ranks."""
    length = _length(dataset)
    if not length or isinstance(dataset, torch.utils.data.IterableDataset):
        return None
    outside = Generators()
    found = []
    try:
        for index in sorted({0, length // 2, length - 1}):
            Generators.seed(0)
            found.append(digest_sample(dataset[index]))
    except Exception:  # a sample that cannot be read is the script's own problem
        return None
    finally:
        outside.restore()
    return found
