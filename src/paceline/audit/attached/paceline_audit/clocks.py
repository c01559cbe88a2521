"""Evidence of the script's own timing: when in a step it reads a clock, and whether a GPU would still be busy then."""

import functools
import os
import sys
import threading
import time
from typing import Any

import torch
from paceline_attach import journal
from paceline_attach.callsite import callsite, is_users
from paceline_attach.listener import Listener, progress
from paceline_attach.seams import guard

MOST_STEPS = 24
CLOCKS = ("time", "perf_counter", "monotonic", "time_ns", "perf_counter_ns", "monotonic_ns")
WAITS = ("item", "tolist", "numpy", "cpu", "__float__", "__int__", "__bool__", "__format__", "__repr__")
"""Functions of tensors that return only when a GPU has computed the value."""


class Clocks(Listener):
    """Follows the clock reads of the script, step by step."""

    def __init__(self) -> None:
        self._stage = "before"
        self._reads: list[tuple[str, str, bool]] = []
        self._steps = 0
        self.is_pending = False
        """Whether a GPU would have work that nobody has waited for."""

    def read(self, site: str) -> None:
        """Note that the script reads a clock."""
        if self._steps < MOST_STEPS:
            self._reads.append((site, self._stage, self.is_pending))

    def fetching(self, iterator: Any) -> None:
        """A step is over: write its reads."""
        del iterator
        if self._stage == "updated" and self._reads:
            self._steps += 1
            journal.put("clocks", step=progress.steps, reads=self._reads)
        self._reads, self._stage = [], "before"

    def fetched(self, iterator: Any, batch: Any) -> None:
        """The batch has arrived."""
        del iterator
        self._stage = "before" if batch is None else "arrived"

    def forward_starts(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, training: bool) -> None:
        """The device has work."""
        del model, args, kwargs, training
        self._stage, self.is_pending = "computing", True

    def backward_starts(self, root: Any) -> None:
        """The device has work."""
        del root
        self._stage, self.is_pending = "computing", True

    def step_ends(self, optimizer: Any) -> None:
        """The update is queued."""
        del optimizer
        self._stage, self.is_pending = "updated", True


def follow(clocks: Clocks) -> None:
    """Wrap the clocks, the functions that wait for a device, and the start of threads."""
    for name in CLOCKS:
        setattr(time, name, _reading(getattr(time, name), clocks))
    for name in WAITS:
        setattr(torch.Tensor, name, _waiting(getattr(torch.Tensor, name), clocks))
    torch.cuda.synchronize = _waiting(torch.cuda.synchronize, clocks)
    torch.cuda.Event.synchronize = _waiting(torch.cuda.Event.synchronize, clocks)
    start = threading.Thread.start

    def start_thread(self: Any) -> None:
        if is_users(sys._getframe(1).f_code.co_filename):
            self.__dict__["_paceline_site"] = callsite(2)
        start(self)

    threading.Thread.start = start_thread


def _reading(original: Any, clocks: Clocks) -> Any:
    @functools.wraps(original)
    def read() -> Any:
        frame = sys._getframe(1)
        if guard.depth == 0 and is_users(frame.f_code.co_filename) and guard.is_outermost():
            clocks.read(f"{os.path.realpath(frame.f_code.co_filename)}:{frame.f_lineno}")
        return original()

    return read


def _waiting(original: Any, clocks: Clocks) -> Any:
    @functools.wraps(original)
    def wait(*args: Any, **kwargs: Any) -> Any:
        if guard.depth == 0:
            clocks.is_pending = False
        return original(*args, **kwargs)

    return wait


def threads_of_script() -> list[str]:
    """Return the lines that started the threads which run now, other than this one."""
    others = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    return [site for thread in others if (site := thread.__dict__.get("_paceline_site")) is not None]
