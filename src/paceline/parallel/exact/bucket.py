"""A bucket: gradients that travel together, and their sums over the shards computed so far."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from paceline.parallel.exact.tree import Node, Sums, leaf

LARGEST = 4 << 20
"""Bytes of a bucket, unless one parameter alone has more. Where buckets end changes no bit of the result."""
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
        self.size = _rounded(sum(_rounded(p.numel(), ALIGNMENT) for p in parameters), multiple_of * ALIGNMENT)
        self.num_missing = 0
        self.sums: Sums[Flat] = Sums(0, self._add)
        self._free: list[Flat] = []

    def begin(self, num_shards: int) -> None:
        """Forget the sums of the step before."""
        self._free += [flat for _, flat in self.sums.parts]
        self.sums = Sums(num_shards, self._add)
        self.num_missing = len(self.parameters)

    def take(self, shard: int) -> None:
        """Add the gradients that a shard left in the parameters; one that it did not leave counts as zero."""
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        node = leaf(shard)
        if self.sums.awaits(node):
            before, flat = self.sums.parts.pop()
            torch._foreach_add_(flat.views, grads)
            node = Node(before.start, node.stop)
        else:
            flat = self.unused()
            torch._foreach_copy_(flat.views, grads)
        self.sums.push(node, flat)
        for parameter in self.parameters:
            parameter.grad = None

    def give(self, flat: Flat) -> None:
        """Leave the sum over all shards in the parameters."""
        self._free += [other for _, other in self.sums.parts if other is not flat]
        self.sums.parts = [(Node(0, self.sums.num_shards), flat)]
        for parameter, view in zip(self.parameters, flat.views, strict=True):
            parameter.grad = view

    def unused(self) -> Flat:
        """Return memory that holds nothing of interest."""
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
