"""The signals that ask a run to stop, and waits for other processes that such a signal ends at once."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from paceline.core.errors import StoppedError

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
KILL_VARIABLE = "_PACELINE_KILL"
"""RANK:STEP at which `paceline verify` kills a rank; starts with an underscore because it is not a setting."""
WAITING = "waiting for other processes"
SECONDS_BETWEEN_LOOKS = 0.1
T = TypeVar("T")


@contextmanager
def handled_by(
    handler: Callable[[int, FrameType | None], object], signals: Sequence[signal.Signals] = STOPPING
) -> Iterator[None]:
    """Handle these signals while the block runs; outside the main thread do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


class _Interruption(KeyboardInterrupt):
    """A signal that ends a block: a BaseException, so that no `except Exception` of the user's code catches it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


@contextmanager
def _swallowed_sent_again() -> Iterator[None]:
    """Send a signal again whose interruption Python ignored, as in `__del__` and in callbacks of weak references."""
    before = sys.unraisablehook

    def send_again(ignored: "sys.UnraisableHookArgs") -> None:
        if isinstance(ignored.exc_value, _Interruption):
            timer = threading.Timer(SECONDS_BETWEEN_LOOKS, os.kill, [os.getpid(), ignored.exc_value.number])
            timer.daemon = True
            timer.start()
        else:
            before(ignored)

    sys.unraisablehook = send_again
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextmanager
def interruptible(doing: str) -> Iterator[None]:
    """Let a signal end the block with StoppedError, which names the interrupted work."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise _Interruption(number)

    try:
        with handled_by(stop), _swallowed_sent_again():
            yield
    except _Interruption as signalled:
        raise StoppedError(signalled.number, doing) from None


def wait_interruptibly(work: Callable[[], T], waiting: str, asked: Callable[[], int | None] = lambda: None) -> T:
    """Return the result of work that may wait in C++ for other processes; a signal ends the wait with StoppedError.

    The work runs on a second thread, because Python handles signals only when the main thread returns from C++. After
    StoppedError that thread still waits. `asked` returns the signal that an earlier handler has already caught.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    result: Future[T] = Future()
    caught: list[int] = []

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as problem:  # noqa: BLE001 - raised again on the main thread
            result.set_exception(problem)

    def stop_if_asked() -> None:
        number = caught[0] if caught else asked()
        if number is not None:
            raise StoppedError(number, waiting)

    with handled_by(lambda number, _frame: caught.append(number)):
        stop_if_asked()
        threading.Thread(target=run, name=WAITING, daemon=True).start()
        while not wait([result], timeout=SECONDS_BETWEEN_LOOKS).done:
            stop_if_asked()
    stop_if_asked()  # now signals go to the earlier handler again; none is lost in between
    return result.result()


def is_still_waiting() -> bool:
    """Tell whether an interrupted wait still runs in C++, which may crash while the interpreter shuts down."""
    return any(thread.name == WAITING for thread in threading.enumerate())


class StopRequest:
    """The signal that asked the run to stop: after this step, or at once at a second Ctrl-C."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.is_overtaken = False
        """Whether a newer attempt trains the run."""

    @property
    def asked(self) -> bool:
        """Tell whether to stop after this step."""
        return self.signal is not None or self.is_overtaken

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Remember the first signal; exit at once on the second Ctrl-C."""
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn signals into a request to stop while the block runs; outside the main thread do nothing."""
    request = StopRequest()
    with handled_by(request.on_signal):
        yield request
