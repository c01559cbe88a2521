"""Batch norm over ranks: statistics of the whole batch, or the average of each rank's statistics.

Torch's SyncBatchNorm does not support CPUs and gives every rank the same weight; this one runs everywhere and weights
a rank by its number of samples, which may be 0.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from paceline.core.errors import ModelError
from paceline.parallel.team import Team

REPLACEABLE = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def synchronise_batch_norm(model: nn.Module, team: Team) -> nn.Module:
    """Return the model with batch-norm layers that normalise with the statistics of all ranks' samples.

    Parameters and buffers keep their names. A lone rank has all the samples: its model is returned unchanged.
    """
    if team.world.size == 1:
        return model
    replaced: dict[nn.Module, nn.Module] = {}
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            setattr(parent, name, _replacement(child, team, replaced))
    return _replacement(model, team, replaced)


@contextmanager
def muted(model: nn.Module) -> Iterator[None]:
    """Let this rank take part in the collectives with a weight of 0.

    For a rank that has run out of samples while others have not. Its output has no gradient.
    """
    layers = [module for module in model.modules() if isinstance(module, SyncBatchNorm)]
    before = [layer.muted for layer in layers]
    for layer in layers:
        layer.muted = True
    try:
        yield
    finally:
        for layer, was_muted in zip(layers, before, strict=True):
            layer.muted = was_muted


class SyncBatchNorm(_BatchNorm):
    """Batch norm over the samples of all ranks, for inputs of any number of dimensions.

    Training is collective, forward and backward: every rank must call it. Evaluation communicates nothing.
    """

    def __init__(self, source: _BatchNorm, num_ranks: int) -> None:
        super().__init__(source.num_features, source.eps, source.momentum, source.affine, source.track_running_stats)
        self.num_ranks = num_ranks
        self.muted = False
        self.training = source.training
        self.weight, self.bias = source.weight, source.bias
        self.running_mean, self.running_var = source.running_mean, source.running_var
        self.num_batches_tracked = source.num_batches_tracked

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Normalise. Collective in training: every rank must call it."""
        if not self.training:
            return super().forward(input)
        total = _gather_moments(input.detach(), num_ranks=self.num_ranks, silent=self.muted)
        if self.track_running_stats:
            self.update_running_statistics(total)
        return _Normalise.apply(input, self.weight, self.bias, _Scene(self, total))  # pyright: ignore[reportReturnType]

    @torch.no_grad()
    def update_running_statistics(self, total: "Moments") -> None:
        """Move the running statistics towards those of the batch: the same bits on every rank."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = total.deviation / (total.count - 1).clamp(min=1)
        self.running_mean.lerp_(total.mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002 - torch's name
        if input.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions, got {input.dim()}")


@dataclass(frozen=True, slots=True)
class Moments:
    """Number of values per channel, their mean, and the sum of their squared deviations from it, all in fp64."""

    count: Tensor
    mean: Tensor
    deviation: Tensor

    @property
    def variance(self) -> Tensor:
        """Return the mean squared deviation."""
        return self.deviation / self.count


@dataclass(frozen=True, slots=True)
class _Scene:
    """The arguments of a normalisation besides its tensors."""

    layer: SyncBatchNorm
    total: Moments


class _Normalise(torch.autograd.Function):
    """Normalise with the statistics of all ranks; in the backward pass every sample depends on all others."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor | None, bias: Tensor | None, scene: _Scene) -> Tensor:
        dtype = _statistics_dtype(inputs)
        mean, variance = scene.total.mean.to(dtype), scene.total.variance.to(dtype)
        ctx.save_for_backward(inputs, weight, mean, variance, scene.total.count)
        ctx.num_ranks, ctx.eps = scene.layer.num_ranks, scene.layer.eps
        ctx.muted = scene.layer.muted or inputs.numel() == 0
        scale, shift = _cast(weight, dtype), _cast(bias, dtype)
        return functional.batch_norm(inputs, mean, variance, scale, shift, eps=scene.layer.eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride] - made by the decorator
        (grad,) = grad_outputs
        inputs, weight, mean, variance, count = ctx.saved_tensors
        own = _gradient_sums(grad, inputs, (mean, variance, ctx.eps), silent=ctx.muted)
        total = own.clone()
        if ctx.num_ranks > 1:
            dist.all_reduce(total)
        of_inputs = of_weight = of_bias = None
        if ctx.needs_input_grad[0] and ctx.muted:
            of_inputs = torch.zeros_like(inputs)
        elif ctx.needs_input_grad[0]:
            scale = torch.rsqrt(variance + ctx.eps)
            factors = _gradient_factors(total / count.to(scale.dtype), mean, scale)
            of_inputs = _combine(grad, inputs, factors if weight is None else factors * weight)
        if weight is not None:
            of_bias, of_weight = own.to(weight.dtype)
        return of_inputs, of_weight, of_bias, None


def _gather_moments(inputs: Tensor, *, num_ranks: int, silent: bool) -> Moments:
    """Return the moments of all ranks' inputs, combined as in Chan et al. Collective: every rank must call it."""
    channels = inputs.shape[1]
    own = inputs.new_zeros(1 + 2 * channels, dtype=torch.float64)
    if not silent and inputs.numel() > 0:
        # This kernel is up to 20 times as fast as var_mean; it offers no fp32 statistics of 16-bit inputs.
        mean, variance = torch.batch_norm_update_stats(inputs.to(_statistics_dtype(inputs)), None, None, 0.0)
        count = inputs.numel() // channels
        own[0] = count
        own[1 : 1 + channels] = mean
        own[1 + channels :] = variance.double() * count
    parts = own.new_empty(num_ranks, own.numel())
    if num_ranks > 1:
        dist.all_gather(list(parts.unbind()), own)
    else:
        parts[0] = own
    counts, means, deviations = parts[:, :1], parts[:, 1 : 1 + channels], parts[:, 1 + channels :]
    count = counts.sum()
    mean = (counts * means).sum(0) / count
    deviation = deviations.sum(0) + (counts * (means - mean).square()).sum(0)
    return Moments(count, mean, deviation)


def _gradient_sums(grad: Tensor, inputs: Tensor, statistics: tuple[Tensor, Tensor, float], *, silent: bool) -> Tensor:
    """Return the sums per channel of the gradient, and of the gradient times the normalised inputs."""
    mean, variance, eps = statistics
    if silent:
        return mean.new_zeros(2, mean.numel())
    # The backward of the evaluation mode takes the statistics as given: its gradients of weight and bias are the sums.
    # CUDA's kernel asserts that there are saved statistics, and reads the running ones if those are empty.
    empty = mean.new_empty(0)
    _, times_normalised, plain = torch.ops.aten.native_batch_norm_backward(
        grad,
        inputs,
        weight=torch.ones_like(mean),
        running_mean=mean,
        running_var=variance,
        save_mean=empty,
        save_invstd=empty,
        train=False,
        eps=eps,
        output_mask=[False, True, True],
    )
    return torch.stack([plain, times_normalised])


def _gradient_factors(means: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Return a, b, c per channel such that the gradient of the inputs is a * gradient + b * inputs + c.

    That is scale * (gradient - mean(gradient) - normalised * mean(gradient * normalised)), expanded.
    """
    slope = -means[1] * scale
    return scale * torch.stack([torch.ones_like(scale), slope, -means[0] - slope * mean])


def _combine(grad: Tensor, inputs: Tensor, factors: Tensor) -> Tensor:
    outer, slope, shift = factors.view(3, 1, -1, *[1] * (inputs.dim() - 2))
    # In place, because a temporary as large as the inputs costs more than the arithmetic.
    return (grad.to(factors.dtype) * outer).addcmul_(inputs.to(factors.dtype), slope).add_(shift).to(inputs.dtype)


def _statistics_dtype(inputs: Tensor) -> torch.dtype:
    return torch.promote_types(inputs.dtype, torch.float32)


def _cast(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if tensor is None else tensor.to(dtype)


def _replacement(module: nn.Module, team: Team, replaced: dict[nn.Module, nn.Module]) -> nn.Module:
    """Return the replacement of a layer; a layer that is used twice has one replacement."""
    if not isinstance(module, _BatchNorm) or isinstance(module, SyncBatchNorm):
        return module
    if type(module) not in REPLACEABLE:
        raise ModelError(
            f"{type(module).__module__}.{type(module).__name__} is not a standard batch norm: cannot synchronise it",
            hint="use --batch-norm local or ghost",
        )
    if module not in replaced:
        replaced[module] = SyncBatchNorm(module, team.world.size)
    return replaced[module]


def has_batch_norm(model: nn.Module) -> bool:
    """Tell whether the output of a model for a sample depends on the other samples of the batch."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())
