"""Torch held to operations that give the same bits every time."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import deterministic

from paceline.core.errors import ModelError

MARK = "does not have a deterministic implementation"


@contextmanager
def deterministic_only() -> Iterator[None]:
    """Let an operation that is not deterministic fail with our words instead of giving other bits each time."""
    checks: Any = deterministic  # a module with a property, which type checkers cannot see
    before = torch.are_deterministic_algorithms_enabled(), checks.fill_uninitialized_memory
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by cuBLAS when it is first used
    torch.use_deterministic_algorithms(mode=True)
    checks.fill_uninitialized_memory = False  # a help to find bugs, which costs time
    try:
        yield
    except RuntimeError as problem:
        if MARK not in str(problem):
            raise
        operation = str(problem).split(MARK)[0].strip()
        raise ModelError(
            f"{operation} gives other bits each time it runs, so --exact bitwise cannot hold",
            hint="use another operation in the model, or --exact order",
        ) from problem
    finally:
        torch.use_deterministic_algorithms(mode=before[0])
        checks.fill_uninitialized_memory = before[1]
