"""Imported by every Python process below the command: attaches Paceline, then runs the sitecustomize it hides."""

import importlib.machinery
import importlib.util
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def attach() -> None:
    """Attach to this process; the script runs even if that fails."""
    try:
        import paceline_attach

        paceline_attach.boot()
    except Exception as problem:
        sys.stderr.write(f"paceline: cannot attach to process {os.getpid()}: {type(problem).__name__}: {problem}\n")


def run_hidden() -> None:
    """Run the sitecustomize of the machine or the cluster, which ours hides."""
    paths = [path for path in sys.path if os.path.abspath(path) != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if os.environ.get("_PACELINE_JOURNALS"):
    attach()
run_hidden()
