"""Gradients that travel in fewer bytes: communication hooks of DDP, on CPU and GPU alike."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future

from paceline.parallel.buckets import Hook

Compression = Literal["none", "fp16", "bf16", "powersgd"]

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
FACTOR_RANK = 4
NUM_PLAIN_STEPS = 10
"""Steps before PowerSGD begins: the first gradients steer most."""


def exchange_hook(kind: Compression, world_size: int) -> tuple[Any, Hook]:
    """Return the state and the hook by which DDP averages gradients. All ranks get the same bits.

    fp16 and bf16 halve the bytes. The sum itself is of 16-bit numbers, so the error grows with the number of ranks; up
    to three it is below 2^-10 of the gradient's length in fp16 and 2^-7 in bf16. fp16 loses gradients below 6e-8.
    powersgd sends two factors of rank 4 in place of a matrix and keeps the error for the next step, so a resumed run
    starts with an error of zero.
    """
    if kind == "none":
        return world_size, average_whole
    if kind == "powersgd":
        return PowerSGD(world_size), average_factors
    return Narrowing(world_size, DTYPES[kind]), average_narrow


@dataclass(frozen=True, slots=True)
class Narrowing:
    """How many ranks take the mean, and of numbers of which type."""

    world_size: int
    dtype: torch.dtype


def average_whole(world_size: int, bucket: GradBucket) -> Future[Tensor]:
    """Average a bucket over the ranks as it is. Collective: DDP calls it on every rank in the same order."""
    whole = bucket.buffer().div_(world_size)
    return _started(whole).then(lambda _: whole)


def average_narrow(state: Narrowing, bucket: GradBucket) -> Future[Tensor]:
    """Average a bucket over the ranks in a narrower type. Collective: DDP calls it on every rank in the same order.

    Torch's hooks narrow before they divide, which overflows earlier, and refuse bf16 on CPU, though gloo adds it.
    """
    whole = bucket.buffer()
    is_wider = whole.element_size() > state.dtype.itemsize
    narrow = whole.div(state.world_size).to(state.dtype if is_wider else whole.dtype)
    return _started(narrow).then(lambda _: whole.copy_(narrow))


def average_factors(state: "PowerSGD", bucket: GradBucket) -> Future[Tensor]:
    """Average a bucket over the ranks by PowerSGD. Collective: DDP calls it on every rank in the same order.

    Torch's hook starts collectives where earlier ones end; with several buckets on gloo the ranks then start them in
    different orders and hang. Here all start in the order of buckets; only the first of two is waited for.
    """
    whole = bucket.buffer()
    if state.num_steps < NUM_PLAIN_STEPS:
        state.num_steps += bucket.is_last()
        return average_narrow(Narrowing(state.world_size, whole.dtype), bucket)
    pairs = list(zip(bucket.parameters(), bucket.gradients(), strict=True))
    matrices = [state.matrix_of(parameter, grad) for parameter, grad in pairs if is_worth_factors(grad)]
    others = [grad for _, grad in pairs if not is_worth_factors(grad)]
    lefts = [matrix.values @ state.right_factors[matrix.parameter] for matrix in matrices]
    state.average(lefts + others)
    lefts = [torch.linalg.qr(left).Q for left in lefts]
    rights = [matrix.values.T @ left for matrix, left in zip(matrices, lefts, strict=True)]
    flat = _flatten(rights, whole).div_(state.world_size)

    def restore(_: Future[Tensor]) -> Tensor:
        _fill(rights, flat)
        for matrix, left, right in zip(matrices, lefts, rights, strict=True):
            state.keep(matrix, left, right)
        return whole

    return _started(flat).then(restore)


@dataclass(frozen=True, slots=True)
class Matrix:
    """A gradient with the error of earlier steps added, as a matrix."""

    parameter: Tensor
    grad: Tensor
    values: Tensor


class PowerSGD:
    """What PowerSGD (Vogels et al. 2019) remembers: each rank its own error, all ranks the same right factors."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.num_steps = 0
        self.errors: dict[Tensor, Tensor] = {}
        self.right_factors: dict[Tensor, Tensor] = {}

    def matrix_of(self, parameter: Tensor, grad: Tensor) -> Matrix:
        """Return a gradient as the matrix to send. The first right factor is random and the same on every rank."""
        values = grad.reshape(grad.shape[0], -1)
        if parameter in self.errors:
            return Matrix(parameter, grad, values + self.errors[parameter])
        generator = torch.Generator().manual_seed(grad.numel())
        self.right_factors[parameter] = torch.randn(values.shape[1], FACTOR_RANK, generator=generator).to(values)
        return Matrix(parameter, grad, values.clone())

    def average(self, tensors: list[Tensor]) -> None:
        """Replace tensors by their mean over ranks, in one message. Collective: every rank must call it."""
        if tensors:
            flat = _flatten(tensors, tensors[0]).div_(self.world_size)
            dist.all_reduce(flat)
            _fill(tensors, flat)

    def keep(self, matrix: Matrix, left: Tensor, right: Tensor) -> None:
        """Set the gradient to the product of its factors, and keep what that leaves out."""
        product = left @ right.T
        matrix.grad.copy_(product.view_as(matrix.grad))
        self.errors[matrix.parameter] = matrix.values.sub_(product)
        self.right_factors[matrix.parameter] = right


def is_worth_factors(grad: Tensor) -> bool:
    """Tell whether two factors are less than half of the matrix."""
    rows = grad.shape[0] if grad.dim() > 1 else 1
    return 2 * FACTOR_RANK * (rows + grad.numel() // rows) < grad.numel()


def _started(tensor: Tensor) -> Future[Tensor]:
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    return work.get_future()


def _flatten(tensors: list[Tensor], like: Tensor) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors]) if tensors else like.new_zeros(1)


def _fill(tensors: list[Tensor], flat: Tensor) -> None:
    sizes = [tensor.numel() for tensor in tensors]
    for tensor, part in zip(tensors, flat[: sum(sizes)].split(sizes), strict=True):
        tensor.copy_(part.view_as(tensor))
