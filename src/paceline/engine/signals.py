"""Ctrl-C, SIGTERM and Slurm's notice: the first asks the loop to stop after the step, a second Ctrl-C stops at once."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from paceline.core.stopping import handled_by


class StopRequest:
    """Whether someone asked the run to stop, and with which signal."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    @property
    def asked(self) -> bool:
        """Tell whether to stop after this step."""
        return self.signal is not None

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Remember the first signal; at the second Ctrl-C give up at once."""
        if self.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn signals into a request while the block runs; outside the main thread there are none to catch."""
    request = StopRequest()
    with handled_by(request.on_signal):
        yield request
