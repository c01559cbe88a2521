"""Ports at which ranks or nodes connect: choosing one, and waiting until one accepts connections."""

import hashlib
import socket
import time

DERIVED_PORTS = range(20_000, 30_000)
"""Ports for jobs whose launcher sets none: below the ephemeral ports of outgoing connections."""


def derived_port(*names: str) -> int:
    """Return a port that is the same on all ranks of a launch, and most likely another in other launches."""
    bits = hashlib.sha256("\0".join(names).encode(), usedforsecurity=False).digest()
    return DERIVED_PORTS[int.from_bytes(bits[:8], "big") % len(DERIVED_PORTS)]


def wait_for_listener(host: str, port: int, timeout: float) -> None:
    """Return once the port accepts connections; after `timeout` seconds raise the last OSError.

    torch's store takes up to three times as long to give up, and prints a C++ backtrace.
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
