"""Slurm's short form of host names."""

import re


def first_host(nodes: str) -> str:
    """Return the first host of a list such as "gpu[03-05,7],login1"."""
    match = re.match(r"([^,\[]+)(?:\[([^\]]+)\]([^,\[]*))?", nodes)
    if match is None:
        return nodes
    prefix, numbers, suffix = match.groups()
    if numbers is None:
        return prefix
    return prefix + re.split("[-,]", numbers)[0] + (suffix or "")
