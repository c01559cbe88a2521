"""The end of an audited rank: after enough epochs or steps, in a hang, or by an exception."""

import functools
import os
import sys
import threading
import time
import traceback
from types import TracebackType
from typing import Any, NoReturn

from paceline_attach import journal, seams
from paceline_attach.callsite import callsite, is_users, lines_of
from paceline_attach.listener import Listener, progress

from . import early
from .settings import SECONDS_UNTIL_STUCK, STEPS

SECONDS_TO_LEAVE = 6.0
STEPS_BETWEEN_LINES = 4
SECONDS_BETWEEN_LOOKS = 0.5
BUSY = 0.1
"""Fraction of a core that a rank uses if it computes; one that waits for others uses none."""


def end_rank(reason: str) -> NoReturn:
    """End this rank, where every other rank ends too; a script that catches SystemExit is ended a little later."""
    journal.put("done", reason=reason)
    seams.tell_exit()
    timer = threading.Timer(SECONDS_TO_LEAVE, os._exit, (0,))
    timer.daemon = True
    timer.start()
    raise SystemExit(0)


class Limits(Listener):
    """Ends a rank after enough steps, and notes where it waits for others."""

    def __init__(self) -> None:
        self._waiting: tuple[str, float] | None = None
        self._is_reported = False
        self._thread = 0
        self._address = {name: os.environ.get(name) for name in ("MASTER_ADDR", "MASTER_PORT")}

    def joined(self) -> None:
        """Watch the waits of this rank."""
        self._thread = threading.get_ident()
        for name, value in self._address.items():
            if os.environ.get(name) != value:
                journal.put("address", name=name, value=os.environ.get(name), site=callsite(1))
        threading.Thread(target=self._watch, daemon=True).start()

    def wait_starts(self, what: str) -> None:
        """Note that this rank may wait for others now."""
        self._waiting = (what, time.monotonic())

    def wait_ends(self) -> None:
        """Note that it waits no longer."""
        self._waiting = None
        if self._is_reported:
            self._is_reported = False
            journal.put("unstuck")

    def backward_starts(self, root: Any) -> None:
        """DistributedDataParallel waits in the backward pass."""
        del root
        self.wait_starts("backward")

    def backward_ends(self) -> None:
        """The gradients are there."""
        self.wait_ends()

    def collective_starts(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A collective waits for the other ranks."""
        del args, kwargs
        self.wait_starts(name)

    def collective_ends(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """It has returned."""
        del name, args, kwargs
        self.wait_ends()

    def forward_starts(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, training: bool) -> None:
        """DistributedDataParallel may wait for buffers."""
        del model, args, kwargs, training
        self.wait_starts("forward")

    def forward_ends(self, *, training: bool) -> None:
        """The buffers are there."""
        del training
        self.wait_ends()

    def step_ends(self, optimizer: Any) -> None:
        """End a rank that has made enough steps."""
        del optimizer
        if progress.steps % STEPS_BETWEEN_LINES == STEPS_BETWEEN_LINES - 1:  # a rank may be killed
            early.put_lines()
        if progress.steps + 1 >= STEPS:
            end_rank("steps")

    def exiting(self) -> None:
        """Leave the lines behind."""
        early.put_lines()
        journal.put("exit", step=progress.steps)

    def _watch(self) -> None:
        used, busy_at = time.process_time(), time.monotonic()
        while not seams.guard.has_exited:
            time.sleep(SECONDS_BETWEEN_LOOKS)
            frame, waiting, now = sys._current_frames().get(self._thread), self._waiting, time.monotonic()
            before, used = used, time.process_time()
            if used - before > BUSY * SECONDS_BETWEEN_LOOKS or (frame and is_users(frame.f_code.co_filename)):
                busy_at = now  # it computes, or the script itself waits for something
            if waiting is None or self._is_reported or now - max(waiting[1], busy_at) < SECONDS_UNTIL_STUCK:
                continue
            self._is_reported = True
            sites = lines_of(frame)
            journal.put("stuck", what=waiting[0], stack=sites, serial=early.state.serial)
            early.put_lines()


def note_exceptions() -> None:
    """Note the exception that ends a rank."""
    original = sys.excepthook

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        put_exception(value, trace)
        original(kind, value, trace)

    sys.excepthook = hook
    spawned: Any = sys.modules["torch.multiprocessing.spawn"]  # torch.multiprocessing.spawn is the function
    original_wrap = spawned._wrap

    def wrap(fn: Any, *args: Any) -> None:
        original_wrap(functools.partial(_noting, fn), *args)

    spawned._wrap = functools.wraps(original_wrap)(wrap)


def _noting(fn: Any, *args: Any) -> Any:
    """Call the function of a spawned rank, whose exceptions torch catches before they reach sys.excepthook."""
    try:
        return fn(*args)
    except Exception as problem:
        put_exception(problem, problem.__traceback__)
        raise


def put_exception(value: BaseException, trace: TracebackType | None) -> None:
    """Write an exception with the line of the script that raised it."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace)]
    sites = [f"{os.path.realpath(file)}:{line}" for file, line in frames if is_users(file)]
    journal.put("failed", error=type(value).__name__, message=str(value)[:2000], stack=sites[::-1], step=progress.steps)
