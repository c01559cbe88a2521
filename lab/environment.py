"""The environment of commands that tests and benchmarks start."""

import os
from pathlib import Path

import paceline


def child_environment(**more: str) -> dict[str, str]:
    """Return the environment of a process that imports this same paceline, whatever its working directory."""
    return os.environ | {"PYTHONPATH": str(Path(paceline.__file__).parents[1])} | more
