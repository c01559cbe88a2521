"""Telling a connection that broke because another rank went from every other error."""

import re

GONE = re.compile(
    r"(connection|socket) (was )?(closed|reset)|reset by peer|broken pipe|remote process exited|was aborted|"
    r"remote (worker|peer)",
    re.IGNORECASE,
)
FROM_TORCH = re.compile(r"gloo|nccl|c10d|tcpstore", re.IGNORECASE)
PEER = re.compile(r"\[([0-9a-fA-F.:]+)\]:\d+")


def is_lost(text: str) -> bool:
    """Tell whether an error text is what torch says when the rank at the other end has gone."""
    return GONE.search(text) is not None and FROM_TORCH.search(text) is not None


def peer_of(text: str) -> str:
    """Return where the connection led, as far as the text says."""
    found = PEER.search(text)
    return "another rank" if found is None else f"a rank at {found[1]}"
