"""Lets a script that asks for CUDA and NCCL run on the CPU with gloo.

`torch.device("cuda:0")` stays what the script asked for, so that it takes the branches that it takes on a GPU; each use
of it as the place of a tensor is rewritten. The lines that ask for CUDA are noted.
"""

import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
from paceline_attach import journal
from paceline_attach.callsite import callsite
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

from . import cuda_stubs, gloo
from .settings import NUM_DEVICES

CPU = torch.device("cpu")
MOST_LINES = 200
KINDS = ("FloatTensor", "HalfTensor", "DoubleTensor", "LongTensor", "IntTensor", "ByteTensor", "BoolTensor")
_noted: set[tuple[str, str]] = set()


def note(what: str) -> None:
    """Write a line that asks for CUDA, once."""
    site = callsite(2)
    if (what, site) not in _noted and len(_noted) < MOST_LINES:
        _noted.add((what, site))
        journal.put("cuda", what=what, site=site)


def is_cuda(value: Any) -> bool:
    """Tell whether a value names a CUDA device."""
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))


def _is_device(value: Any) -> bool:
    return is_cuda(value) or type(value) is int


SPECIAL: dict[str, Callable[[tuple[Any, ...]], Any]] = {
    "cuda": lambda args: args[0],
    "pin_memory": lambda args: args[0],
    "is_pinned": lambda _args: False,
    "record_stream": lambda _args: None,
}
"""Functions of tensors that do nothing on a CPU."""


class OnCpu(TorchFunctionMode):
    """Rewrites devices in the arguments of all functions of torch."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function on the CPU."""
        del types
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if func is torch.device:
            return func(*args, **kwargs)
        if name in SPECIAL and args and isinstance(args[0], torch.Tensor):
            note(f".{name}()")
            return SPECIAL[name](args)
        return func(*_positional(name, args), **_keywords(kwargs))


def _positional(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    if name == "to" and len(args) > 1 and type(args[1]) is int:
        args = (args[0], CPU, *args[2:])
    if name == "type" and len(args) > 1 and "torch.cuda." in str(args[1]):
        kind = next((kind for kind in KINDS if kind in str(args[1])), "FloatTensor")
        args = (args[0], getattr(torch, kind), *args[2:])
    if any(is_cuda(value) for value in args):
        note("device cuda")
        args = tuple(CPU if is_cuda(value) else value for value in args)
    return args


def _keywords(kwargs: dict[str, Any]) -> dict[str, Any]:
    if _is_device(kwargs.get("device")):
        note("device cuda")
        kwargs = kwargs | {"device": CPU}
    return kwargs | {"pin_memory": False} if kwargs.get("pin_memory") else kwargs


def _modules() -> None:
    original = torch.nn.Module.to

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and _is_device(args[0]):
            note(".to(cuda)")
            args = (CPU, *args[1:])
        if _is_device(kwargs.get("device")):
            kwargs["device"] = CPU
        return original(self, *args, **kwargs)

    def cuda(self: Any, _device: Any = None) -> Any:
        note(".cuda()")
        return self

    def convert(cls: Any, module: Any, process_group: Any = None) -> Any:
        del cls, process_group
        journal.put("sync_batch_norm")  # which refuses to run on a CPU
        return module

    module: Any = torch.nn.Module
    module.to, module.cuda = to, cuda
    norm: Any = torch.nn.SyncBatchNorm
    norm.convert_sync_batchnorm = classmethod(convert)


def _precision() -> None:
    """Run without reduced precision: some CPUs cannot compute in bf16, and no rule depends on it."""
    autocast: Any = torch.amp.autocast_mode.autocast
    start = autocast.__init__
    scaler: Any = torch.amp.grad_scaler.GradScaler
    start_scaler = scaler.__init__

    def init(self: Any, device_type: str, dtype: Any = None, enabled: bool = True, **more: Any) -> None:
        del device_type, dtype, enabled
        start(self, "cpu", dtype=torch.bfloat16, enabled=False, **more)

    def init_scaler(self: Any, device: Any = "cuda", *args: Any, **kwargs: Any) -> None:
        del device
        start_scaler(self, "cpu", *args, **kwargs)

    autocast.__init__, scaler.__init__ = init, init_scaler

    class OldScaler(scaler):
        """torch.cuda.amp.GradScaler, whose first argument is no device."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            start_scaler(self, "cpu", *args, **kwargs)

    class OldAutocast(autocast):
        """torch.cuda.amp.autocast, whose first argument is no device."""

        def __init__(self, *_args: Any, **_kwargs: Any) -> None:
            super().__init__("cpu")

    torch.cuda.amp.GradScaler, torch.cuda.amp.autocast = OldScaler, OldAutocast


def _files_and_loaders() -> None:
    load, loader = torch.load, torch.utils.data.DataLoader
    start = loader.__init__

    def load_on_cpu(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        place: Any = map_location if callable(map_location) else "cpu"
        return load(f, place, *args, **kwargs)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs["pin_memory"] = False
        kwargs.pop("pin_memory_device", None)
        start(self, *args[:7], **kwargs)

    torch.load, loader.__init__ = load_on_cpu, init


def _ddp() -> None:
    original = DistributedDataParallel.__init__

    def init(self: Any, module: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kw: Any) -> None:
        del device_ids, output_device
        original(self, module, None, None, *args, **kw)

    DistributedDataParallel.__init__ = init


def install() -> None:
    """Rewrite CUDA and NCCL."""
    if not os.environ.get("CUDA_VISIBLE_DEVICES"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(NUM_DEVICES)))  # scripts count its entries
    cuda_stubs.install()
    gloo.install(note)
    _modules()
    _precision()
    _files_and_loaders()
    _ddp()
    warnings.filterwarnings("ignore", message=".*CUDA.*")
    OnCpu().__enter__()
