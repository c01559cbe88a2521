"""Tensors of the simulated device: wrappers around CPU tensors; operations are checked and then computed there."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import return_and_correct_aliasing

from tests.sim.devices import DEVICES
from tests.sim.entries import LOG
from tests.sim.kernels import KERNELS
from tests.sim.memory import Block, is_pinned
from tests.sim.names import NAME
from tests.sim.rules import MIXING, WAITING, aten, broken_rule


class SimTensor(torch.Tensor):
    """A tensor of the simulated device; `host` holds its values, `block` is its allocation."""

    host: torch.Tensor
    block: Block

    @staticmethod
    def __new__(cls, host: torch.Tensor, index: int, block: Block | None = None) -> "SimTensor":
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            host.size(),
            strides=host.stride(),
            storage_offset=host.storage_offset(),
            dtype=host.dtype,
            device=torch.device(NAME, index),
        )
        made.host, made.block = host, Block() if block is None else block
        return made

    def __init__(self, host: torch.Tensor, index: int, block: Block | None = None) -> None:
        """Leave everything to __new__."""

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"SimTensor({self.host!r}, device={self.device})"

    def numpy(self, *, force: bool = False) -> Any:
        LOG.add("host", "numpy() of device memory")
        raise TypeError(f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() first")

    def tolist(self) -> Any:
        LOG.add("sync", "tolist")
        return self.host.tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> "SimTensor":
        copied = SimTensor(self.host.clone(), self.device.index)
        copied.requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            copied._is_param = True  # pyright: ignore[reportAttributeAccessIssue] - torch's own mark
        memo[id(self)] = copied
        return copied

    def __reduce_ex__(self, protocol: Any) -> Any:
        LOG.add("sync", "pickled: pageable copy to the host")
        return self.host.detach().clone().__reduce_ex__(protocol)

    def record_stream(self, s: Any) -> None:
        self.block.protect(s.number)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})


Special = Callable[[tuple, dict], Any]


def run(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """Check an operation as CUDA would, and compute it on the CPU."""
    LOG.operations[LOG.phase] += 1
    flat, spec = pytree.tree_flatten((args, kwargs))
    sims = [value for value in flat if isinstance(value, SimTensor)]
    for sim in sims:
        sim.block.use()
    check_devices(func, sims, [value for value in flat if _is_host(value)])
    problem = broken_rule(func, args, kwargs)
    if problem is not None:
        LOG.add("rule", f"{func}: {problem}")
        raise RuntimeError(f"{func} on CUDA: {problem}")
    if func in WAITING:
        LOG.add("sync", str(func))
    if func in COPIES:
        return COPIES[func](args, kwargs)
    host_args, host_kwargs = pytree.tree_unflatten([_host(value) for value in flat], spec)
    device = torch.device(kwargs.get("device") or torch.device(NAME, sims[0].device.index if sims else DEVICES.current))
    if "device" in host_kwargs:
        host_kwargs["device"] = "cpu"
    out = _computed(func, host_args, host_kwargs, DEVICES.index(device))
    return out if device.type == "cpu" else _wrapped(func, (args, kwargs), out, (sims, DEVICES.index(device)))


def check_devices(func: Any, sims: list[SimTensor], hosts: list[torch.Tensor]) -> None:
    """Refuse tensors of several devices, except in copies; a host tensor of no dimensions is a number."""
    if func in MIXING:
        return
    found = {str(sim.device) for sim in sims} | {"cpu" for host in hosts if host.dim() > 0}
    if len(found) > 1:
        LOG.add("mixed", str(func))
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, "
            f"{' and '.join(sorted(found))}! ({func})"
        )


def _computed(func: Any, args: tuple, kwargs: dict[str, Any], index: int) -> Any:
    """Compute on the CPU, with the generator of the device in the place of torch's."""
    kernel: Callable[..., Any] = KERNELS.get(func) or func
    if torch.Tag.nondeterministic_seeded not in func.tags or kwargs.get("generator") is not None:
        return kernel(*args, **kwargs)
    default, own = torch.default_generator, DEVICES.generators[index]
    before = default.get_state()
    default.set_state(own.get_state())
    try:
        out = kernel(*args, **kwargs)
        own.set_state(default.get_state())
    finally:
        default.set_state(before)
    return out


def _wrapped(func: Any, call: tuple[tuple, dict], out: Any, origin: tuple[list[SimTensor], int]) -> Any:
    """Return results as tensors of the device; a view shares the allocation of its base."""
    sims, index = origin
    blocks = {_address(sim.host): sim.block for sim in sims}

    def wrap(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or isinstance(value, SimTensor):
            return value
        made = SimTensor(value, index, blocks.get(_address(value)) if value.untyped_storage().size() else None)
        made.block.use()
        return made

    out = pytree.tree_map(wrap, out)
    if out is None or not func._schema.returns:
        return out
    return return_and_correct_aliasing(func, *call, out)


def _copy_(args: tuple, kwargs: dict[str, Any]) -> Any:
    target, source = args[0], args[1]
    transfer(target, source, non_blocking=args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
    _host(target).copy_(_host(source))
    return target


def _to_copy(args: tuple, kwargs: dict[str, Any]) -> Any:
    source = args[0]
    device = torch.device(kwargs.get("device") or source.device)
    options = {key: value for key, value in kwargs.items() if key not in {"device", "non_blocking", "pin_memory"}}
    values = aten._to_copy.default(_host(source), **options)
    if device.type == "cpu":
        transfer(values, source, non_blocking=kwargs.get("non_blocking", False))
        return values
    made = SimTensor(values, DEVICES.index(device) if device.index is not None else source.device.index)
    transfer(made, source, non_blocking=kwargs.get("non_blocking", False))
    return made


def transfer(target: torch.Tensor, source: torch.Tensor, *, non_blocking: bool) -> None:
    """Note whether the host waits for a copy: it does unless the host memory is page-locked and the copy asynchronous.

    CUDA copies densely. Where the layouts differ, a host tensor is first made contiguous, in pageable memory.
    """
    if isinstance(target, SimTensor) == isinstance(source, SimTensor):
        return
    host = source if isinstance(target, SimTensor) else target
    way = "to the device" if host is source else "to the host"
    pinned = is_pinned(host)
    if not (pinned and non_blocking):
        kind = f"{'pinned' if pinned else 'pageable'} {'asynchronous' if non_blocking else 'blocking'}"
        LOG.add("sync", f"{kind} copy {way} of {tuple(host.shape)}")
    elif source.stride() != target.stride() and not host.is_contiguous():
        LOG.add("sync", f"copy {way} changes the layout on the host, through pageable memory, of {tuple(host.shape)}")


COPIES: Mapping[Any, Special] = {aten.copy_.default: _copy_, aten._to_copy.default: _to_copy}


def _host(value: Any) -> Any:
    return value.host if isinstance(value, SimTensor) else value


def _is_host(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, SimTensor)


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
