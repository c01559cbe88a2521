"""Messages on standard error, before a run has its log and after it is closed."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from paceline.core.units import escape_controls

SECONDS_UNTIL_SLOW = 5


def say(text: str, *, prefix: str = "paceline: ") -> None:
    """Print a message for the user."""
    print(escape_controls(prefix + text), file=sys.stderr, flush=True)  # noqa: T201 - the one place that prints messages


@contextmanager
def say_if_slow(text: str) -> Iterator[None]:
    """Print a message if the block takes longer than a few seconds."""
    timer = threading.Timer(SECONDS_UNTIL_SLOW, say, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
