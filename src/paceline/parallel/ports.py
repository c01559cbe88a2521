"""Ports at which the ranks or nodes of a launch connect: one that nobody has chosen, and one that must answer."""

import hashlib
import socket
import time

DERIVED_PORTS = range(20_000, 30_000)
"""Ports for jobs whose launcher gives none: below those that systems hand out to outgoing connections."""


def derived_port(*names: str) -> int:
    """Return a port that all ranks of a launch compute alike, and other launches most likely not."""
    bits = hashlib.sha256("\0".join(names).encode(), usedforsecurity=False).digest()
    return DERIVED_PORTS[int.from_bytes(bits[:8], "big") % len(DERIVED_PORTS)]


def wait_for_listener(host: str, port: int, timeout: float) -> None:
    """Return once something listens there; after `timeout` seconds raise the last OSError.

    torch's own store takes up to three times as long to give up, and prints a C++ backtrace.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            socket.create_connection((host, port), timeout=min(timeout, 2)).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return
