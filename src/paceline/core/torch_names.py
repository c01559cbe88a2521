"""Recognising that the installed torch lacks a name that Paceline uses: some of them are private, and may change."""

import sys
from pathlib import Path
from types import ModuleType, TracebackType

from paceline.core.errors import PacelineError

TESTED = "2.13.0"
"""The version of torch that all tests run with."""
PACKAGE = Path(__file__).parents[1]


def explain_missing_name(problem: Exception) -> PacelineError | None:
    """Return the error for the user if our own code used a name that torch does not have."""
    name = _missing(problem)
    if name is None or name.partition(".")[0] != "torch" or not _raised_here(problem.__traceback__):
        return None
    return PacelineError(
        f"torch {sys.modules['torch'].__version__} has no {name}, which Paceline uses",
        hint=f"install the version that Paceline is tested with: pip install torch=={TESTED}",
    )


def _missing(problem: Exception) -> str | None:
    if isinstance(problem, ImportError) and problem.name is not None:
        _, _, wanted = str(problem).partition("cannot import name '")
        return ".".join(filter(None, [problem.name, wanted.partition("'")[0]]))
    if isinstance(problem, AttributeError) and isinstance(problem.obj, ModuleType | type):
        owner = problem.obj
        place = owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"
        return f"{place}.{problem.name}"
    return None


def _raised_here(trace: TracebackType | None) -> bool:
    """Tell whether our code used the name; Python's import or torch's `__getattr__` may run last."""
    used_in = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith("<frozen ") and code.co_name != "__getattr__":
            used_in = code.co_filename
        trace = trace.tb_next
    return PACKAGE in Path(used_in).parents
