"""Evidence of single calls: checkpoints, schedulers, gradient scaling and clipping, values read from the device."""

import os
import sys
from collections import Counter
from typing import Any

import torch
from paceline_attach import journal
from paceline_attach.callsite import callsite, is_users
from paceline_attach.listener import Listener, progress
from paceline_attach.seams import guard

from . import early
from .steps import Steps

MOST_STEPS_OF_SCHEDULER = 40
LARGEST_CLIP = 1024.0
"""A larger one is meant for scaled gradients: GradScaler starts with 65,536."""
HORIZONS = ("T_max", "total_steps", "total_iters")


class Calls(Listener):
    """Follows these calls."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self.reads: Counter[str] = Counter()
        """Values read from tensors, by line, while batches are trained on."""
        self.zeroed = 0
        self._stale: list[int] = []
        self.is_scaled = self.is_unscaled = False
        self.clipped: set[str] = set()
        self.is_evaluating = False
        """Whether the script has ever put the model into evaluation mode."""
        self.skipped = 0
        """Updates that GradScaler was asked for and left out, or has not made yet."""

    def backward_starts(self, root: Any) -> None:
        """Note gradients that are left from the step before."""
        del root
        if progress.steps and not progress.passes and not self.zeroed:
            for model in progress.wrapped_models()[:1]:
                if any(p.grad is not None and bool(p.grad.any()) for p in model.parameters()):
                    self._stale.append(progress.steps)
                    journal.put("stale_gradients", step=progress.steps, site=callsite(3))

    def step_ends(self, optimizer: Any) -> None:
        """Write the counts so far: a rank may be killed."""
        del optimizer
        self.is_scaled = self.is_unscaled = False
        self.skipped = 0
        journal.put("reads", step=progress.steps + 1, lines=dict(self.reads))
        self.reads.clear()

    def saving(self, value: Any, target: Any) -> None:
        """Note what a checkpoint holds."""
        path = os.path.realpath(os.fspath(target)) if isinstance(target, str | os.PathLike) else None
        journal.put(
            "save",
            path=path,
            site=callsite(3),
            step=progress.steps,
            holds=contents(value),
            serial=early.state.serial,
        )


def contents(value: Any) -> dict[str, str]:
    """Return what kind of state each entry of a checkpoint is."""
    if not isinstance(value, dict):
        return {"": type(value).__name__}
    found = {}
    for key, item in list(value.items())[:40]:
        if isinstance(item, dict) and "param_groups" in item:
            kind = "optimizer"
        elif isinstance(item, dict) and {"last_epoch", "_step_count"} & set(item):
            kind = "scheduler"
        elif isinstance(item, dict) and any(isinstance(inner, torch.Tensor) for inner in item.values()):
            kind = "weights"
        elif isinstance(item, torch.Tensor):
            kind = "tensor"
        else:
            kind = f"int {item}" if isinstance(item, int) and not isinstance(item, bool) else type(item).__name__
        found[str(key)] = kind
    return found


def follow(calls: Calls) -> None:
    """Wrap the functions."""
    _follow_state(calls)
    _follow_schedulers(calls)
    _follow_scaler(calls)
    _follow_reads(calls)
    for owner in (torch.optim.Optimizer, torch.nn.Module):
        _count_zeroing(owner, calls)


def _count_zeroing(owner: Any, calls: Calls) -> None:
    original = owner.zero_grad

    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.zeroed += 1
        return original(self, *args, **kwargs)

    owner.zero_grad = zero_grad


def _follow_state(calls: Calls) -> None:
    load, load_state = torch.load, torch.nn.Module.load_state_dict

    def load_file(f: Any, *args: Any, **kwargs: Any) -> Any:
        value = load(f, *args, **kwargs)
        path = os.path.realpath(os.fspath(f)) if isinstance(f, str | os.PathLike) else None
        journal.put("load", path=path, site=callsite(2), step=progress.steps, holds=contents(value))
        return value

    def load_weights(self: Any, *args: Any, **kwargs: Any) -> Any:
        is_wrapped = bool(progress.wrapped_models())
        journal.put("load_weights", site=callsite(2), step=progress.steps, is_wrapped=is_wrapped)
        return load_state(self, *args, **kwargs)

    load_optimizer, train = torch.optim.Optimizer.load_state_dict, torch.nn.Module.train

    def load_optimizer_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        journal.put("load_optimizer", site=callsite(2), step=progress.steps)
        return load_optimizer(self, *args, **kwargs)

    def set_mode(self: Any, mode: bool = True) -> Any:
        if not mode and not calls.is_evaluating and any(self in (m, m.module) for m in progress.wrapped_models()):
            calls.is_evaluating = True
            journal.put("eval_mode", step=progress.steps)
        return train(self, mode)

    torch.load, torch.nn.Module.load_state_dict, torch.nn.Module.train = load_file, load_weights, set_mode
    torch.optim.Optimizer.load_state_dict = load_optimizer_state


def _follow_schedulers(calls: Calls) -> None:
    def follow_class(kind: Any) -> None:
        original = kind.step

        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            count = self.__dict__["_paceline_steps"] = self.__dict__.get("_paceline_steps", 0) + 1
            is_called_by_script = is_users(sys._getframe(1).f_code.co_filename) and not _is_made(self)
            if count <= MOST_STEPS_OF_SCHEDULER and is_called_by_script and guard.depth == 0:
                found = [getattr(self, name, None) for name in HORIZONS]
                horizon = next((value for value in found if isinstance(value, int)), 0)
                values = {"name": type(self).__name__, "horizon": horizon, "step": progress.steps}
                epoch = kwargs.get("epoch", args[0] if args else None)
                values |= {"at": epoch if isinstance(epoch, int) else None, "skipped": calls.skipped}
                journal.put("schedule", site=callsite(2), scheduler=id(self), **values)
            return original(self, *args, **kwargs)

        kind.step = step

    follow_class(torch.optim.lr_scheduler.LRScheduler)
    for kind in torch.optim.lr_scheduler.LRScheduler.__subclasses__():
        if "step" in vars(kind):
            follow_class(kind)


def _is_made(scheduler: Any) -> bool:
    """Tell whether the constructor of a scheduler calls: it steps once itself."""
    frame = sys._getframe(2)
    for _ in range(6):
        if frame is None:
            return False
        if frame.f_code.co_name in {"__init__", "_initial_step"} and frame.f_locals.get("self") is scheduler:
            return True
        frame = frame.f_back
    return False


def _follow_scaler(calls: Calls) -> None:
    scaler = torch.amp.grad_scaler.GradScaler
    scale, unscale, step = scaler.scale, scaler.unscale_, scaler.step

    def scale_loss(self: Any, outputs: Any) -> Any:
        if isinstance(outputs, torch.Tensor) and outputs.numel() == 1:
            calls._steps.unscaled = outputs
        calls.is_scaled = self.is_enabled()
        return scale(self, outputs)

    def unscale_gradients(self: Any, optimizer: Any) -> Any:
        calls.is_unscaled = True
        unscale(self, optimizer)
        calls._steps.gradients.remember()

    def step_scaled(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.skipped += 1
        return step(self, *args, **kwargs)

    scaler.scale, scaler.unscale_, scaler.step = scale_loss, unscale_gradients, step_scaled
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        original = getattr(torch.nn.utils, name)

        def clip(*args: Any, _original: Any = original, _name: str = name, **kwargs: Any) -> Any:
            site = callsite(2)
            most = kwargs.get("max_norm", kwargs.get("clip_value", args[1] if len(args) > 1 else 0.0))
            is_late = calls.is_scaled and not calls.is_unscaled and float(most) < LARGEST_CLIP
            if is_late and site not in calls.clipped:
                calls.clipped.add(site)
                journal.put("clip", name=_name, site=site)
            result = _original(*args, **kwargs)
            calls._steps.gradients.remember()
            return result

        setattr(torch.nn.utils, name, clip)
        setattr(torch.nn.utils.clip_grad, name, clip)


def _follow_reads(calls: Calls) -> None:
    """Count values that are read from tensors: each makes a GPU finish its work first."""
    for name in ("item", "__float__", "tolist", "numpy"):
        original = getattr(torch.Tensor, name)

        def read(self: Any, *args: Any, _original: Any = original, **kwargs: Any) -> Any:
            is_training = self.grad_fn is not None or progress.passes > 0
            if is_training and guard.depth == 0 and is_users(sys._getframe(1).f_code.co_filename):
                calls.reads[callsite(2)] += 1
            return _original(self, *args, **kwargs)

        setattr(torch.Tensor, name, read)
