"""A bucket: gradients that are sent together, and their sums over the shards computed so far."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paceline.parallel.exact.exchange import Halves

LARGEST = 4 << 20
"""Maximum bytes of a bucket. The boundaries of buckets and pieces do not change any bit of the result."""
SMALLEST = 64 << 10
"""Minimum bytes of a piece: a smaller one costs more time than it saves."""
ALIGNMENT = 16
"""Alignment of gradients in elements: 64 bytes of fp32, like torch's own allocations."""


@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """Memory for one gradient of every parameter in a bucket, as one flat tensor and as views per parameter."""

    whole: Tensor
    views: list[Tensor]


class Bucket:
    """Gradients of some parameters: summed over shards here, and over ranks by an exchange."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.size = sum(_aligned(p.numel()) for p in parameters)
        self.missing: set[Tensor] = set()
        """Parameters that have no gradient yet from the current shard."""
        self.sums: tuple[list[Flat], list[Flat]] = ([], [])
        """Sums of the first half of the batch, and of the second, in the order of addition."""
        self._free: list[Flat] = []

    def begin(self) -> None:
        """Clear the sums of the previous step."""
        for sums in self.sums:
            self._free += sums
            sums.clear()
        self.missing = set(self.parameters)

    def take(self, half: int, *, add: bool) -> None:
        """Take the gradients of a shard from the parameters; a missing one counts as zero.

        They are added to the earlier ones of this half of the batch, unless sums of other ranks come first.
        """
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        sums = self.sums[half]
        if add and sums:
            torch._foreach_add_(sums[-1].views, grads)
        else:
            sums.append(self._unused())
            torch._foreach_copy_(sums[-1].views, grads)
        for parameter in self.parameters:
            parameter.grad = None

    def pieces(self, number: int) -> Iterator[tuple[Halves, Tensor]]:
        """Yield the sums of this rank and the memory for the total, in about `number` pieces of equal length."""
        left, right = ([flat.whole for flat in sums] for sums in self.sums)
        if not left and not right:
            self.sums[0].append(self._unused())
        result = self._result.whole
        num_bytes = max(SMALLEST, min(LARGEST, result.nbytes) // number)
        length = num_bytes // result.element_size()
        for start in range(0, self.size, length):
            piece = slice(start, start + length)
            yield ([flat[piece] for flat in left], [flat[piece] for flat in right]), result[piece]

    def give(self) -> None:
        """Write the sum over all shards to the gradients of the parameters."""
        for parameter, view in zip(self.parameters, self._result.views, strict=True):
            parameter.grad = view

    @property
    def _result(self) -> Flat:
        left, right = self.sums
        return (left or right)[0]

    def _unused(self) -> Flat:
        return self._free.pop() if self._free else self._allocate()

    def _allocate(self) -> Flat:
        whole = self.parameters[0].new_zeros(self.size, requires_grad=False)
        views, start = [], 0
        for parameter in self.parameters:
            part = whole[start : start + parameter.numel()]
            views.append(part.as_strided(parameter.shape, torch.empty_like(parameter, device="meta").stride()))
            start += _aligned(parameter.numel())
        return Flat(whole, views)


def make_buckets(parameters: Sequence[nn.Parameter]) -> list[Bucket]:
    """Group parameters in the given order into a few buckets of one type each, so that the first can be sent early.

    A bucket exceeds LARGEST only if a single parameter does.
    """
    limit = min(LARGEST, max(4 * SMALLEST, sum(parameter.nbytes for parameter in parameters) // 4))
    groups: list[list[nn.Parameter]] = []
    num_bytes = 0
    for parameter in parameters:
        fits = groups and num_bytes + parameter.nbytes <= limit and parameter.dtype == groups[-1][0].dtype
        if not fits:
            groups.append([])
            num_bytes = 0
        groups[-1].append(parameter)
        num_bytes += parameter.nbytes
    return [Bucket(group) for group in groups]


def _aligned(number: int) -> int:
    return -(-number // ALIGNMENT) * ALIGNMENT
