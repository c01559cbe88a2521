"""A bucket: gradients that travel together, and their sums over the shards computed so far."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paceline.parallel.exact.exchange import Halves

LARGEST = 4 << 20
"""Bytes that travel together, at most. Where a bucket or a piece of it ends changes no bit of the result."""
SMALLEST = 64 << 10
"""Bytes below which a piece takes more time than it saves."""
ALIGNMENT = 16
"""Numbers to a multiple of which a gradient begins: 64 bytes of fp32, as torch's own allocations do."""


@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """Memory for one gradient of every parameter in a bucket, as a whole and parameter by parameter."""

    whole: Tensor
    views: list[Tensor]


class Bucket:
    """Gradients of some parameters: summed over shards here, and over ranks by an exchange."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.size = sum(_aligned(p.numel()) for p in parameters)
        self.missing: set[Tensor] = set()
        """Parameters whose gradient the shard that is being computed has not left yet."""
        self.sums: tuple[list[Flat], list[Flat]] = ([], [])
        """Of the first half of the batch, and of the second, in the order of their addition."""
        self._free: list[Flat] = []

    def begin(self) -> None:
        """Forget the sums of the step before."""
        for sums in self.sums:
            self._free += sums
            sums.clear()
        self.missing = set(self.parameters)

    def take(self, half: int, *, add: bool) -> None:
        """Take the gradients that a shard left in the parameters; one that it did not leave counts as zero.

        They are added to those taken before from this half of the batch, unless sums of other ranks come first.
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
        """Yield the sums of this rank and the memory for the sum of all, in about so many pieces of equal length."""
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
        """Leave the sum over all shards in the parameters."""
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
    """Group parameters in the given order, each bucket of one type: a few, so that the first can leave early.

    A bucket is larger than LARGEST where one parameter is.
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
