"""The `paceline` logger, through which all messages and progress go, and the console as its default handler.

logging.getLogger("paceline").setLevel("WARNING") makes `paceline.train` quiet; a handler of the user replaces the
console.
"""

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from paceline.core.units import escape_controls

SECONDS_UNTIL_SLOW = 5
LOGGER = logging.getLogger("paceline")


class Console(logging.Handler):
    """Shows every message where it belongs: on standard error, on standard output, or above a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        """Show a message."""
        show: Callable[[], None] = getattr(record, "show", lambda: _print_message(record.getMessage()))
        show()


def log(level: int, text: str, show: Callable[[], None]) -> None:
    """Log a message; the console calls `show` for it. The console is attached unless the logger has a handler."""
    if not LOGGER.handlers:
        LOGGER.addHandler(Console())
        LOGGER.propagate = False  # a handler of the root logger would show it again
        if LOGGER.level == logging.NOTSET:
            LOGGER.setLevel(logging.INFO)
    LOGGER.log(level, "%s", text, extra={"show": show})


def shows_progress() -> bool:
    """Tell whether the console is to show a progress bar."""
    is_attached = not LOGGER.handlers or any(isinstance(handler, Console) for handler in LOGGER.handlers)
    return is_attached and LOGGER.level <= logging.INFO


def say(text: str, *, prefix: str = "paceline: ", level: int = logging.INFO) -> None:
    """Log a message for the user, which the console prints on standard error."""
    log(level, text, lambda: _print_message(prefix + text))


def _print_message(text: str) -> None:
    print(escape_controls(text), file=sys.stderr, flush=True)  # noqa: T201 - the one place that prints messages


@contextmanager
def say_if_slow(text: str) -> Iterator[None]:
    """Log a message if the block takes longer than a few seconds."""
    timer = threading.Timer(SECONDS_UNTIL_SLOW, say, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
