"""Slurm's short form of host names."""

import re


def first_host(nodes: str) -> str:
    """Return the first host of a list such as "gpu[03-05,7],login1"."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", nodes if first is None else first[0])
