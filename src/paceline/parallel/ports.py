"""The port at which the ranks of a launch connect when nobody has chosen one."""

import hashlib

DERIVED_PORTS = range(20_000, 30_000)
"""Ports for jobs whose launcher gives none: below those that systems hand out to outgoing connections."""


def derived_port(*names: str) -> int:
    """Return a port that all ranks of a launch compute alike, and other launches most likely not."""
    bits = hashlib.sha256("\0".join(names).encode(), usedforsecurity=False).digest()
    return DERIVED_PORTS[int.from_bytes(bits[:8], "big") % len(DERIVED_PORTS)]
