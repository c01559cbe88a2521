"""Messages on standard error, for what happens before a run has its log, and after."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SECONDS_UNTIL_SLOW = 5


def say(text: str, *, prefix: str = "paceline: ") -> None:
    """Print a message for the user."""
    print(prefix + text, file=sys.stderr, flush=True)  # noqa: T201 - this is where messages leave


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
