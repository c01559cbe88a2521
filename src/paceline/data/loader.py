"""Batches in the order asked for, prepared here or ahead of time by worker processes: the result is the same."""

from collections.abc import Iterator, Sequence

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
    )
    for batch in loader:
        if isinstance(batch, Exception):
            raise batch
        yield batch


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
