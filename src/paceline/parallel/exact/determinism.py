"""Restricts torch to deterministic operations, and records the environment that a bitwise result depends on."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import deterministic

from paceline.core.config import Config
from paceline.core.errors import ModelError, RunError
from paceline.parallel.device import describe_device, gpu_facts
from paceline.records.environment import cpu_name, vector_instructions

MARK = "does not have a deterministic implementation"
WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
ARITHMETIC = 4
"""Increased whenever a change of Paceline changes the bits of a result."""
LIMITS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS")
"""Variables that make the libraries below torch choose other instructions."""


@contextmanager
def deterministic_only() -> Iterator[None]:
    """Make a non-deterministic operation fail with ModelError."""
    checks: Any = deterministic  # a module with a property, which type checkers cannot see
    before = torch.are_deterministic_algorithms_enabled(), checks.fill_uninitialized_memory
    os.environ.setdefault(WORKSPACE, ":4096:8")  # read by cuBLAS when it is first used
    torch.use_deterministic_algorithms(mode=True)
    checks.fill_uninitialized_memory = False  # a debugging aid that costs time
    try:
        yield
    except RuntimeError as problem:
        if WORKSPACE in str(problem):
            raise RunError(
                f"cuBLAS was used in this process before {WORKSPACE} was set, and is non-deterministic without it",
                hint=f"restart the process or the notebook with {WORKSPACE}=:4096:8",
            ) from problem
        if MARK not in str(problem):
            raise
        operation = str(problem).split(MARK)[0].strip()
        raise ModelError(
            f"{operation} is non-deterministic; --exact bitwise needs deterministic operations",
            hint="use another operation in the model, or --exact order",
        ) from problem
    finally:
        torch.use_deterministic_algorithms(mode=before[0])
        checks.fill_uninitialized_memory = before[1]


def fingerprint(config: Config, device: torch.device) -> dict[str, Any]:
    """Return what must be the same on every rank and after every resume, by the names used in messages."""
    facts = {"arithmetic": ARITHMETIC, "shards": config.fixed_shards, "torch": str(torch.__version__)}
    if device.type != "cpu":
        return facts | gpu_facts(device)
    facts |= {
        "threads": torch.get_num_threads(),
        "device": describe_device(device, cpu_name()),
        "instructions": " ".join([torch.backends.cpu.get_cpu_capability(), *vector_instructions()]),
    }
    return facts | {name: os.environ[name] for name in LIMITS if name in os.environ}


def refuse_other_bits(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to resume a bitwise run in an environment that would change the bits of the next steps."""
    for name in dict.fromkeys([*before, *now]):
        old, new = before.get(name, "not set"), now.get(name, "not set")
        if old != new:
            ways = {"threads": f"resume with --threads {old}", "arithmetic": "resume with the version that started it"}
            way = ways.get(name, f"resume where {name} is {old}")
            raise RunError(
                f"cannot resume bitwise: {name} was {old} when saved and is {new} here",
                hint=f"{way}, or continue with --exact order",
            )
