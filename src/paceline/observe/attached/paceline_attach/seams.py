"""The functions of torch that every training script calls, wrapped so that listeners hear of the calls."""

import atexit
import functools
import multiprocessing.util
import os
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import dataloader
from torch.utils.data._utils import worker

from . import journal
from .callsite import callsite
from .facts import ddp_facts, model_facts, num_samples, rank_facts
from .listener import listeners, progress

COLLECTIVES = (
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "gather", "scatter", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier", "monitored_barrier", "all_gather_object",
    "gather_object", "broadcast_object_list", "scatter_object_list",
)  # fmt: skip
Function = Callable[..., Any]


class _Guard:
    """Only the outermost call of a seam counts, on the thread that trains, and not in a loader's worker."""

    def __init__(self) -> None:
        self.depth = 0
        self.thread: int | None = None
        self.has_exited = False
        self.optimizers: list[int] = []
        """The optimizers that are stepping now; one may step another, as ZeroRedundancyOptimizer does."""

    def is_outermost(self) -> bool:
        if self.depth or worker._worker_info is not None:  # get_worker_info() without its cost in every step
            return False
        if self.thread is None:
            self.thread = get_ident()
        return self.thread == get_ident()

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


guard = _Guard()


def wrap(owner: Any, name: str, make: Callable[[Function], Function]) -> None:
    """Replace a function by the one that `make` makes of it."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(make(original)))


def _next(original: Function) -> Function:
    def next_batch(self: Any) -> Any:
        if not guard.is_outermost():
            return original(self)
        for listener in listeners:
            listener.fetching(self)
        batch = None
        try:
            with guard:
                batch = original(self)
                progress.samples = num_samples((batch,))
        finally:
            for listener in listeners:
                listener.fetched(self, batch)
        return batch

    return next_batch


def _to(original: Function) -> Function:
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        target = kwargs.get("device", args[0] if args else None)
        stays = target is None or isinstance(target, torch.dtype | torch.Tensor) or str(target) == "cpu"
        if stays or self.device.type != "cpu" or not guard.is_outermost():
            return original(self, *args, **kwargs)
        for listener in listeners:
            listener.copying()
        try:
            return original(self, *args, **kwargs)
        finally:
            for listener in listeners:
                listener.copied()

    return to


def _forward(original: Function) -> Function:
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not guard.is_outermost():
            return original(self, *args, **kwargs)
        training = torch.is_grad_enabled() and self.module.training  # Lightning leaves the wrapper itself in eval mode
        progress.samples = num_samples((*args, *kwargs.values()))
        for listener in listeners:
            listener.forward_starts(self, args, kwargs, training=training)
        try:
            with guard:
                return original(self, *args, **kwargs)
        finally:
            for listener in listeners:
                listener.forward_ends(training=training)
            progress.in_forward = training

    return forward


def _backward(original: Function) -> Function:
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if not guard.is_outermost():
            return original(tensors, *args, **kwargs)
        root = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
        handle = None
        if journal.rank is not None and isinstance(root, torch.Tensor) and root.requires_grad:
            handle = root.register_hook(_expect_end)  # a lone rank has no gradients to average
        for listener in listeners:
            listener.backward_starts(root)
        try:
            with guard:
                return original(tensors, *args, **kwargs)
        finally:
            if handle is not None:
                handle.remove()
            for listener in listeners:
                listener.backward_ends()
            progress.passes += 1
            if progress.models:
                progress.synced += any(model.require_backward_grad_sync for model in progress.wrapped_models())
            progress.batches.append(progress.samples)
            progress.in_forward = False

    return backward


def _expect_end(_gradient: Any) -> None:
    """Queue a callback for the end of this pass: it runs before the one in which DDP waits, which is queued later."""
    Variable._execution_engine.queue_callback(_gradients_computed)


def _gradients_computed() -> None:
    for listener in listeners:
        listener.gradients_computed()


def _before_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if not guard.is_outermost():
        return
    if id(optimizer) in guard.optimizers:
        guard.optimizers.clear()  # its last step failed, and never ended
    guard.optimizers.append(id(optimizer))
    if len(guard.optimizers) == 1:
        for listener in listeners:
            listener.step_starts(optimizer)


def _after_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if not guard.is_outermost() or not guard.optimizers:
        return
    guard.optimizers.pop()
    if guard.optimizers:
        return
    for listener in listeners:
        listener.updated(optimizer)
    if not progress.passes:
        return
    if progress.optimizer is None:
        progress.optimizer = id(optimizer)
    if progress.optimizer == id(optimizer):
        for listener in listeners:
            listener.step_ends(optimizer)
        progress.next_step()


def _init(original: Function) -> Function:
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        names = ("backend", "init_method", "timeout", "world_size", "rank")
        given = dict(zip(names, args, strict=False)) | kwargs
        asked = {name: str(value) for name, value in given.items() if name != "store"}
        journal.put("joining", site=callsite(2), asked=asked)
        result = original(*args, **kwargs)
        journal.rank = dist.get_rank()
        journal.put("rank", site=callsite(2), asked=asked, **rank_facts())
        for listener in listeners:
            listener.joined()
        return result

    return init_process_group


def _ddp(original: Function) -> Function:
    def init(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        for listener in listeners:
            listener.wrapping(module)
        original(self, module, *args, **kwargs)
        progress.models.append(weakref.ref(self))
        journal.put("model", site=callsite(2), wrapper="ddp", **model_facts(module), **ddp_facts(self))
        for listener in listeners:
            listener.wrapped(self)

    return init


def _collective(name: str) -> Callable[[Function], Function]:
    def make(original: Function) -> Function:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not guard.is_outermost():
                return original(*args, **kwargs)
            for listener in listeners:
                listener.collective_starts(name, args, kwargs)
            try:
                with guard:
                    return original(*args, **kwargs)
            finally:
                for listener in listeners:
                    listener.collective_ends(name, args, kwargs)

        return call

    return make


def _save(original: Function) -> Function:
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        if not guard.is_outermost():
            return original(obj, f, *args, **kwargs)
        for listener in listeners:
            listener.saving(obj, f)
        try:
            with guard:
                return original(obj, f, *args, **kwargs)
        finally:
            for listener in listeners:
                listener.saved()

    return save


def tell_exit() -> None:
    """Tell the listeners that this process ends, once; a loader's worker has nothing to say."""
    if guard.has_exited or worker._worker_info is not None:
        return
    guard.has_exited = True
    for listener in listeners:
        listener.exiting()


def _after_fork() -> None:
    """A forked process starts afresh: it may be a rank."""
    progress.__init__()
    guard.__init__()
    journal.rank = None
    multiprocessing.util.Finalize(None, tell_exit, exitpriority=100)  # such a process calls no atexit function


def install() -> None:
    """Wrap all of them."""
    wrap(dataloader._BaseDataLoaderIter, "__next__", _next)
    wrap(torch.Tensor, "to", _to)
    wrap(torch.Tensor, "cuda", _to)
    wrap(DistributedDataParallel, "forward", _forward)
    wrap(DistributedDataParallel, "__init__", _ddp)
    wrap(torch.autograd, "backward", _backward)
    wrap(torch, "save", _save)
    register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)
    for name, make in {"init_process_group": _init, **{name: _collective(name) for name in COLLECTIVES}}.items():
        if hasattr(c10d, name):
            wrap(c10d, name, make)
            setattr(dist, name, getattr(c10d, name))
    atexit.register(tell_exit)
    multiprocessing.util.Finalize(None, tell_exit, exitpriority=100)
    os.register_at_fork(after_in_child=_after_fork)
