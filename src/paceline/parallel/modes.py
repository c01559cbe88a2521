"""The modes of parallel training: single, dp, ddp, fsdp. Callers use the module that `wrap_model` returns."""

import contextlib
import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from paceline.core.config import Config
from paceline.core.errors import ConfigError, ModelError
from paceline.core.units import plural
from paceline.core.world import World
from paceline.parallel.batchnorm import synchronise_batch_norm
from paceline.parallel.data_parallel import data_parallel
from paceline.parallel.ddp_hooks import BucketTimer, comm_hook
from paceline.parallel.shard_units import find_units
from paceline.parallel.sharded import has_sharded_parameters
from paceline.parallel.team import Team
from paceline.parallel.threads import ThreadedParallel

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

Mode = Literal["single", "dp", "ddp", "fsdp"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModeChoice:
    """The mode of a run, its devices, and the reason."""

    mode: Mode
    devices: int = 1
    """Devices of this process: more than one only for dp."""
    why: str

    def __str__(self) -> str:
        return f"{self.mode} ({self.why})"


def choose_mode(config: Config, world: World, *, devices: int) -> ModeChoice:
    """Choose the mode; `devices` is the number of devices of this process."""
    asked = config.mode
    if asked == "auto":
        mode: Mode = "ddp" if world.size > 1 else "single"
        return ModeChoice(mode=mode, why=plural(world.size, "rank"))
    if world.size > 1 and asked in {"single", "dp"}:
        raise ConfigError(
            f"--mode {asked} is for one process, but there are {world.size} ranks",
            hint="use --mode ddp, or start one process",
        )
    if asked == "dp":
        return ModeChoice(mode="dp", devices=devices, why=f"requested, {plural(devices, 'device')} in one process")
    if world.size == 1 and asked != "single":
        return ModeChoice(mode="single", why=f"the same as {asked} with one rank")
    return ModeChoice(mode=asked, why="requested")


def refuse_unfit(config: Config, choice: ModeChoice) -> None:
    """Refuse settings that the mode does not support."""
    if choice.mode == "fsdp" and config.batch_norm == "ghost" and config.exact == "order":
        raise ConfigError(
            "--batch-norm ghost is not supported with --mode fsdp unless the run is bitwise",
            hint="use --exact bitwise, --mode ddp, or --batch-norm sync",
        )
    if choice.mode == "fsdp" and config.balance:
        raise ConfigError(
            "--balance is not supported with --mode fsdp: every rank takes part in every micro-batch",
            hint="use --mode ddp, or drop --balance",
        )
    if choice.mode == "dp" and config.checkpoint_activations:
        raise ConfigError(
            "--checkpoint-activations is not supported with --mode dp: devices draw random numbers from one generator, "
            "so dropout would compute other activations in the backward pass",
            hint="use --mode ddp, or drop --checkpoint-activations",
        )
    if choice.mode != "ddp" and config.compress != "none":
        raise ConfigError(
            f"--compress {config.compress} applies to ddp only, but the mode is {choice}",
            hint="drop --compress, or start several ranks with --nproc",
        )


def convert_batch_norm(model: nn.Module, config: Config, team: Team) -> nn.Module:
    """Return the model with the batch norm of the settings."""
    if config.batch_norm == "sync":
        return synchronise_batch_norm(model, team)
    return model


def wrap_model(
    model: nn.Module, config: Config, team: Team, choice: ModeChoice, timer: BucketTimer | None = None
) -> nn.Module:
    """Return the module to call in place of the model. Collective: every rank must call it.

    With --exact bitwise this is the model itself, and the exact reducer sums the gradients. With a bucket timer even a
    lone rank uses ddp. A sharded model is compiled after sharding, so that the model itself, which evaluation calls
    without compiling it, gathers its weights.
    """
    if choice.mode == "fsdp":
        shard_parameters(model, config, team)
    called = _compiled(model) if config.compile else model
    if (choice.mode == "ddp" and config.exact == "order") or timer is not None:
        return _distributed(called, config, team, timer)
    if choice.mode == "dp" and choice.devices > 1:
        if team.device.type == "cuda":
            return data_parallel(called, config, team.device, choice.devices)
        return ThreadedParallel(called, choice.devices)
    return called


def averages_gradients(module: nn.Module) -> bool:
    """Tell whether the module averages gradients over the ranks, rather than summing them over the batch."""
    return isinstance(_uncompiled(module), DistributedDataParallel) or has_sharded_parameters(_uncompiled(module))


def without_grad_sync(module: nn.Module) -> AbstractContextManager[Any]:
    """Return the context for all but the last micro-batch of a step: gradients are not synchronised."""
    module = _uncompiled(module)
    if isinstance(module, DistributedDataParallel):
        return module.no_sync()
    return _unsynchronised(module) if has_sharded_parameters(module) else contextlib.nullcontext()


def shard_parameters(model: nn.Module, config: Config, team: Team) -> None:
    """Keep a shard of each parameter on each rank, on the device of the team. Collective: every rank must call it.

    Shards are rows of contiguous parameters. A convolution with channels-last weights still computes in that format.
    A pass gathers one block at a time, and what is in no block from its start on.
    """
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415 - see parallel/sharded.py

    for module in model.modules():
        # By strides: with one input channel weights are contiguous in both formats, and strides choose the kernel.
        if isinstance(module, nn.Conv2d) and module.weight.stride() != torch.empty(module.weight.shape).stride():
            _convolve_channels_last(module)
    types = {str(parameter.dtype).removeprefix("torch.") for parameter in model.parameters()}
    if len(types) > 1:
        raise ModelError(
            f"the parameters are of types {' and '.join(sorted(types))}; --mode fsdp needs one type",
            hint="use --mode ddp, or convert the model to one type",
        )
    for name, parameter in model.named_parameters():
        if parameter.dim() == 0:
            raise ModelError(
                f"{name} is a scalar, which --mode fsdp cannot shard",
                hint="use --mode ddp, or make it a tensor of one element",
            )
        parameter.data = parameter.data.clone(memory_format=torch.contiguous_format)
    mesh = init_device_mesh(team.device.type, (team.world.size,))
    # Gradients in fixed point are sent as they arrive. If own code skips some of them, ranks would send them and gather
    # blocks in different orders, so blocks stay gathered until the end of the backward pass.
    frees_blocks = config.exact == "order" or ":" not in config.model
    for unit in find_units(model, name=config.model):
        fully_shard(unit, mesh=mesh, reshard_after_forward=frees_blocks)
    fully_shard(model, mesh=mesh)


def _convolve_channels_last(module: nn.Conv2d) -> None:
    """Let a convolution convert its weights before it uses them, which takes the same time and rounds the same way."""
    convolve = module._conv_forward  # noqa: SLF001 - a hook of torch for those who change the weights

    def converted(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # noqa: A002 - torch's name
        return convolve(input, weight.to(memory_format=torch.channels_last), bias)

    module._conv_forward = converted  # noqa: SLF001


def _compiled(model: nn.Module) -> nn.Module:
    compiled = torch.compile(model)
    assert isinstance(compiled, nn.Module)
    return compiled


def _uncompiled(module: nn.Module) -> nn.Module:
    return getattr(module, "_orig_mod", module)  # importing the wrapper's class takes seconds


@contextlib.contextmanager
def _unsynchronised(module: "FSDPModule") -> Any:
    module.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        module.set_requires_gradient_sync(True)


def _distributed(model: nn.Module, config: Config, team: Team, timer: BucketTimer | None) -> DistributedDataParallel:
    """Buffers are not broadcast: they are averaged before they are used or saved."""
    # The user's own model may skip parameters, in some steps or on some ranks; built-in ones use all in every pass.
    may_skip = ":" in config.model
    if may_skip:
        warnings.filterwarnings("ignore", message="find_unused_parameters=True was specified")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # named forward_sync_buffers in newer torch
        wrapped = DistributedDataParallel(
            model,
            device_ids=None if team.device.type == "cpu" else [team.device.index],
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            bucket_cap_mb=config.bucket_mb,
            static_graph=config.micro_batches == 1 and config.batch_norm != "ghost" and not may_skip,
            find_unused_parameters=may_skip,
        )
    state, hook = comm_hook(config.compress, team.world.size)
    if timer is not None:
        timer.install(wrapped, hook, state)
    elif config.compress != "none":  # without a hook, DDP averages in C++
        wrapped.register_comm_hook(state, hook)
    return wrapped


def num_devices(device: torch.device, nproc: int | None) -> int:
    """Return the number of devices that a single process may use: threads on a CPU, GPUs otherwise."""
    if device.type == "cpu":
        return nproc or 1
    found = torch.cuda.device_count()
    if nproc is not None and nproc > found:
        raise ConfigError(f"--nproc {nproc} is more than the {plural(found, 'GPU')} of this machine")
    return nproc or found
