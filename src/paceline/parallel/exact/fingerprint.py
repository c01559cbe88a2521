"""What the bits of a result depend on besides its settings: the same everywhere, or the promise does not hold."""

import os
from collections.abc import Mapping
from typing import Any

import torch

from paceline.core.config import Config
from paceline.core.errors import RunError
from paceline.parallel.device import describe_device
from paceline.records.environment import cpu_name, vector_instructions

ARITHMETIC = 2
"""Raised whenever Paceline itself computes the same settings to other bits."""
LIMITS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS")
"""Variables by which the libraries below torch choose other instructions."""


def fingerprint(config: Config, device: torch.device) -> dict[str, Any]:
    """Return what must be the same on every rank and after every resume, under the words that a message uses."""
    facts = {
        "arithmetic": ARITHMETIC,
        "shards": config.fixed_shards,
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "device": describe_device(device, cpu_name()),
        "instructions": " ".join([torch.backends.cpu.get_cpu_capability(), *vector_instructions()]),
    }
    return facts | {name: os.environ[name] for name in LIMITS if name in os.environ}


def refuse_other_bits(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with a run where the next steps would not have the bits they would have had before."""
    for name in dict.fromkeys([*before, *now]):
        old, new = before.get(name, "not set"), now.get(name, "not set")
        if old != new:
            ways = {
                "threads": f"--threads {old}",
                "arithmetic": "go on with the version of Paceline that began it",
            }
            way = ways.get(name, f"go on where {name} is {old}")
            raise RunError(
                f"this run promises bits that depend on {name}, which was {old} and is {new} here",
                hint=f"{way}, or give the promise up from here on: --exact order",
            )
