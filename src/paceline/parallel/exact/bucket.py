"""A bucket: gradients that travel together, and their sums over the shards computed so far."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paceline.parallel.exact.tree import Node, Sums, leaf

LARGEST = 4 << 20
"""Bytes that travel together. A bucket is larger where one parameter is. Where it ends changes no bit of the result."""
ALIGNMENT = 16
"""Numbers to a multiple of which a gradient begins: 64 bytes of fp32, as torch's own allocations do."""


@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """Memory for one gradient of every parameter in a bucket, as a whole and parameter by parameter."""

    whole: Tensor
    views: list[Tensor]


class Bucket:
    """Gradients of some parameters: summed over shards here, and over ranks by an exchange."""

    def __init__(self, parameters: Sequence[nn.Parameter], *, multiple_of: int) -> None:
        self.parameters = list(parameters)
        unit = multiple_of * ALIGNMENT
        self.size = _rounded(sum(_rounded(p.numel(), ALIGNMENT) for p in parameters), unit)
        self._piece = _rounded(LARGEST // parameters[0].element_size(), unit)
        self.missing: set[Tensor] = set()
        """Parameters whose gradient the shard that is being computed has not left yet."""
        self.sums: Sums[Flat] = Sums(0, self._add)
        self._free: list[Flat] = []

    def begin(self, num_shards: int) -> None:
        """Forget the sums of the step before."""
        self._free += [flat for _, flat in self.sums.parts]
        self.sums = Sums(num_shards, self._add)
        self.missing = set(self.parameters)

    def take(self, shard: int) -> None:
        """Add the gradients that a shard left in the parameters; one that it did not leave counts as zero."""
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        node = leaf(shard)
        if self.sums.awaits(node):
            before, flat = self.sums.parts.pop()
            torch._foreach_add_(flat.views, grads)
            node = Node(before.start, node.stop)
        else:
            flat = self._unused()
            torch._foreach_copy_(flat.views, grads)
        self.sums.push(node, flat)
        for parameter in self.parameters:
            parameter.grad = None

    def pieces(self) -> Iterator[tuple[list[Tensor], Tensor]]:
        """Yield the sums of this rank's nodes and the memory for the sum of all, a piece of them at a time."""
        if not self.sums.parts:
            self.sums.parts.append((Node(0, 0), self._unused()))
            sums = []
        else:
            sums = [flat.whole.split(self._piece) for _, flat in self.sums.parts]
        for number, result in enumerate(self._result.whole.split(self._piece)):
            yield [pieces[number] for pieces in sums], result

    def give(self) -> None:
        """Leave the sum over all shards in the parameters."""
        for parameter, view in zip(self.parameters, self._result.views, strict=True):
            parameter.grad = view

    @property
    def _result(self) -> Flat:
        return self.sums.parts[0][1]

    def _unused(self) -> Flat:
        return self._free.pop() if self._free else self._allocate()

    def _add(self, left: Flat, right: Flat) -> Flat:
        left.whole.add_(right.whole)
        self._free.append(right)
        return left

    def _allocate(self) -> Flat:
        whole = self.parameters[0].new_zeros(self.size, requires_grad=False)
        views, start = [], 0
        for parameter in self.parameters:
            part = whole[start : start + parameter.numel()]
            views.append(part.as_strided(parameter.shape, torch.empty_like(parameter, device="meta").stride()))
            start += _rounded(parameter.numel(), ALIGNMENT)
        return Flat(whole, views)


def make_buckets(parameters: Sequence[nn.Parameter], *, multiple_of: int) -> list[Bucket]:
    """Group parameters in the given order, each bucket of one type and at most LARGEST bytes."""
    groups: list[list[nn.Parameter]] = []
    num_bytes = 0
    for parameter in parameters:
        fits = groups and num_bytes + parameter.nbytes <= LARGEST and parameter.dtype == groups[-1][0].dtype
        if not fits:
            groups.append([])
            num_bytes = 0
        groups[-1].append(parameter)
        num_bytes += parameter.nbytes
    return [Bucket(group, multiple_of=multiple_of) for group in groups]


def _rounded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
