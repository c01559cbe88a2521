"""The requests of an epoch or an evaluation as lazy sequences: their ids are computed when a batch is prepared."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.data.split import Ids, SampleIds

Request = tuple[Ids, int | None]
"""The ids of a batch, and the epoch (None to evaluate)."""
RequestGroup = Sequence[Request]
"""Requests of one epoch that are prepared together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpochRequests:
    """The micro-batches of one rank in some consecutive batches of an epoch."""

    order: SampleIds
    epoch: int
    global_batch: int
    batches: range
    """Indices of the batches in the epoch."""
    slices: Sequence[range]
    """This rank's micro-batches in every batch but the last, as positions in the batch."""
    last_slices: Sequence[range]

    def __len__(self) -> int:
        return (len(self.batches) - 1) * len(self.slices) + len(self.last_slices) if self.batches else 0

    @property
    def largest(self) -> int:
        """Number of ids of the largest request."""
        return max((len(part) for part in (*self.slices, *self.last_slices)), default=0)

    def __getitem__(self, index: int) -> Request:
        before_last = (len(self.batches) - 1) * len(self.slices)
        if index >= before_last:
            batch, part = self.batches[-1], self.last_slices[index - before_last]
        else:
            position, number = divmod(index, len(self.slices))
            batch, part = self.batches[position], self.slices[number]
        start = batch * self.global_batch
        return self.order[start + part.start : start + part.stop], self.epoch


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockRequests:
    """Blocks of the samples to score."""

    num_samples: int
    scored: Ids | None
    """The samples to score; None for all."""
    blocks: Sequence[int]
    largest: int
    """Samples per block; the last block may have fewer."""

    def __len__(self) -> int:
        return len(self.blocks)

    def num_ids(self, num_requests: int) -> int:
        """Return the number of ids in the first requests."""
        starts = (block * self.largest for block in self.blocks[:num_requests])
        return sum(min(self.largest, self.num_samples - start) for start in starts)

    def __getitem__(self, index: int) -> Request:
        start = self.blocks[index] * self.largest
        end = min(start + self.largest, self.num_samples)
        return np.arange(start, end) if self.scored is None else self.scored[start:end], None


@dataclass(frozen=True, slots=True)
class RequestGroups:
    """Groups of consecutive requests of one epoch, each with the same number of requests but the last."""

    requests: "Requests"
    per_group: int

    @classmethod
    def make(cls, requests: "Requests", most: int) -> "RequestGroups":
        """Return groups of up to `most` samples, or of one request if that has more."""
        if isinstance(requests, EpochRequests | BlockRequests):
            largest = requests.largest
        else:
            largest = max((len(ids) for ids, _ in requests), default=0)
        return cls(requests, max(1, most // max(1, largest)))

    def __len__(self) -> int:
        return (len(self.requests) + self.per_group - 1) // self.per_group

    def __getitem__(self, index: int) -> RequestGroup:
        start = index * self.per_group
        return [self.requests[each] for each in range(start, min(start + self.per_group, len(self.requests)))]

    def __iter__(self) -> Iterator[RequestGroup]:
        return (self[index] for index in range(len(self)))


Requests = EpochRequests | BlockRequests | Sequence[Request]
