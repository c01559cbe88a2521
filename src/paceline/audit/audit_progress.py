"""How far an audit is, for people who wait for it."""

import sys
import time

from paceline.core.messages import say

SECONDS_BETWEEN_MESSAGES = 60


class AuditProgress:
    """Shows how far the audit is: a changing line on a terminal, a message every minute elsewhere."""

    def __init__(self) -> None:
        self._next = time.monotonic() + SECONDS_BETWEEN_MESSAGES

    def __call__(self, text: str) -> None:
        """Show a text."""
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()
        elif time.monotonic() >= self._next:
            self._next += SECONDS_BETWEEN_MESSAGES
            say(f"still running, {text}")

    def clear(self) -> None:
        """Clear the line before the findings are printed."""
        if sys.stderr.isatty():
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
