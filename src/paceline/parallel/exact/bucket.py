"""Buckets: gradients that are sent together, added up in fixed point over the shards of all ranks."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from paceline.parallel.exact.fixed_point import BLOCK, EMPTY, FixedPoint, whole_blocks
from paceline.parallel.module_state import as_real
from paceline.parallel.sharded import is_sharded


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """The place of a tensor in a bucket, in its unsharded layout; complex numbers are pairs of real ones."""

    name: str
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    start: int = 0

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> "Slot":
        """Return a slot for a tensor; rows must be the outermost dimension in memory, since fsdp shards rows."""
        tensor = as_real(tensor)
        dense = torch.empty_like(tensor, device="meta")
        by_rows = tensor.dim() == 0 or dense.stride(0) * len(tensor) == tensor.numel()
        stride = dense.stride() if by_rows else torch.empty(tensor.shape, device="meta").stride()
        return cls(name=name, shape=tensor.shape, stride=stride, dtype=tensor.dtype)

    @property
    def number_type(self) -> torch.dtype:
        """The type that the tensor is added up in."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.shape.numel()

    @property
    def num_bytes(self) -> int:
        """Bytes that are sent for the tensor."""
        return self.size * self.number_type.itemsize

    @property
    def blocks(self) -> slice:
        """The blocks of the bucket that belong to the tensor."""
        return slice(self.start // BLOCK, (self.start + whole_blocks(self.size)) // BLOCK)

    def view(self, memory: Tensor) -> Tensor:
        """Return the memory of the tensor in that of the bucket."""
        return memory.as_strided(self.shape, self.stride, memory.storage_offset() + self.start)


class Bucket:
    """Gradients of some parameters that every rank holds as a whole."""

    def __init__(self, slots: Sequence[Slot], device: torch.device, *, num_terms: int) -> None:
        self.slots, self.size = [], 0
        for slot in slots:
            self.slots.append(dataclasses.replace(slot, start=self.size))
            self.size += whole_blocks(slot.size)
        self._device = device
        self.fixed = FixedPoint(self.size, slots[0].number_type, device, num_terms=num_terms)
        self._work: dist.Work | None = None

    def _num_kept(self) -> int:
        """Return the number of elements that this rank keeps the sum of."""
        return self.size

    def begin(self, *, wide: bool) -> None:
        """Clear the sums of the previous step, and choose their scale."""
        self.fixed.set_scale(wide=wide)
        self._total = torch.zeros(self._num_kept(), dtype=self.fixed.integers, device=self._device)

    def add(self, gradients: Mapping[str, Tensor], *, is_last: bool) -> None:
        """Add the gradients of a shard; a missing one counts as zero. With the last one, start the sum over ranks.

        Collective with the last one: every rank must call it, in the same order of buckets.
        """
        self.fixed.add(self._collect(gradients), self._total)
        if is_last and dist.is_initialized():
            self._work = dist.all_reduce(self._total, async_op=True)

    def _collect(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """Return the gradients of a shard as one vector."""
        vector = torch.zeros(self.size, dtype=self.fixed.dtype, device=self._device)
        given = [slot for slot in self.slots if slot.name in gradients]
        if given:
            real = [as_real(gradients[slot.name].resolve_conj()) for slot in given]
            torch._foreach_copy_([slot.view(vector) for slot in given], real)
        return vector

    def wait(self) -> None:
        """Wait for the sum over ranks."""
        if self._work is not None:
            self._work.wait()
            self._work = None

    def give(self, targets: Mapping[str, Tensor], seen: Tensor) -> None:
        """Set the gradients of the parameters to the sum; `seen` are the magnitudes of the step."""
        numbers = self.fixed.numbers(self._total, seen)
        for slot in self.slots:
            gradient = slot.view(numbers).to(slot.dtype)
            targets[slot.name].grad = torch.view_as_complex(gradient) if targets[slot.name].is_complex() else gradient

    def fill_empty(self) -> None:
        """Give blocks that were always zero the magnitude of their parameter: a rare row of an embedding needs one."""
        for own in (self.fixed.magnitudes[slot.blocks] for slot in self.slots):
            own[own == EMPTY] = own.max()


class ShardedBucket(Bucket):
    """Gradients of some parameters of which every rank holds some rows (fsdp): each rank keeps the sum of its own.

    The gradients of each shard of the batch are sent at once, so that no rank holds those of the whole model.
    """

    _received: Tensor | None = None

    def _num_kept(self) -> int:
        return sum(self._num_rows(slot) * slot.stride[0] for slot in self.slots)

    def _num_rows(self, slot: Slot) -> int:
        """Return the rows of a parameter that a rank owns; the last ranks may have fewer, or none."""
        return -(-slot.shape[0] // dist.get_world_size())

    def add(self, gradients: Mapping[str, Tensor], *, is_last: bool) -> None:
        """Add the gradients of a shard to those of the other ranks. Collective: every rank must call it."""
        integers = self._total.new_zeros(self.size)
        self.fixed.add(self._collect(gradients), integers)
        self.wait()
        by_rank, num_ranks = [], dist.get_world_size()
        for slot in self.slots:
            missing = num_ranks * self._num_rows(slot) * slot.stride[0] - slot.size
            whole = functional.pad(integers[slot.start : slot.start + slot.size], (0, missing))
            by_rank.append(whole.view(num_ranks, -1))
        self._received = torch.empty_like(self._total)
        self._work = dist.reduce_scatter_tensor(self._received, torch.cat(by_rank, 1).flatten(), async_op=True)

    def wait(self) -> None:
        """Wait for the gradients that were sent last."""
        super().wait()
        if self._received is not None:
            self._total.add_(self._received)
            self._received = None

    def give(self, targets: Mapping[str, Tensor], seen: Tensor) -> None:
        """Set the gradients of this rank's rows to the sum."""
        units, start = self.fixed.units(seen).expand(-1, BLOCK), 0
        for slot in self.slots:
            target, length = targets[slot.name], self._num_rows(slot) * slot.stride[0]
            assert is_sharded(target), "fsdp shards all parameters"
            assert target.grad is None, f"the gradient of {slot.name} was not taken"
            gradient = torch.zeros_like(target, requires_grad=False)
            local = as_real(gradient.to_local())  # pyright: ignore[reportAttributeAccessIssue] - a DTensor too
            first = min(dist.get_rank() * length, slot.size)
            own = units[slot.blocks].flatten()[first : first + local.numel()]
            numbers = self._total[start : start + local.numel()].to(self.fixed.dtype) * own
            local.copy_(numbers.as_strided(local.shape, slot.stride))
            target.grad = gradient
            start += length
