"""Attached to the Python processes of a foreign script. Needs the standard library and the script's own torch only."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

PART_VARIABLE = "_PACELINE_PART"
"""The module to install once torch is imported."""
EARLY_VARIABLE = "_PACELINE_EARLY"
"""A module to install at the start of the process; it must not import torch."""


def boot() -> None:
    """Prepare this process: a Python that never imports torch pays for a few dictionary look-ups only."""
    sys.meta_path.insert(0, _AfterTorch())
    early = os.environ.get(EARLY_VARIABLE)
    if early:
        importlib.import_module(early).install()


class _AfterTorch:
    """Imports torch as usual, and patches it before the script's next line runs."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            try:
                _install()
            except Exception as problem:
                if os.environ.get("_PACELINE_DEBUG"):
                    raise
                sys.stderr.write(f"paceline: cannot attach to torch: {type(problem).__name__}: {problem}\n")

        spec.loader.exec_module = exec_module  # pyright: ignore[reportAttributeAccessIssue]
        return spec


def _install() -> None:
    from . import seams

    importlib.import_module(os.environ.get(PART_VARIABLE, "paceline_attach.timing")).install()
    seams.install()
