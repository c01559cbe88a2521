"""The environment of a run: an allow-list of facts, never all environment variables."""

import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from paceline.core.addresses import hide_passwords

PACKAGES = ("paceline", "torch", "numpy", "timm", "torchvision")
VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_NTASKS",
    "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "ONEDNN_MAX_CPU_ISA", "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG",
)  # fmt: skip
COMMAND_VARIABLE = "_PACELINE_COMMAND"
"""Holds the command that the user typed, in ranks that Paceline starts with a command of its own."""
VECTORS = ("avx", "amx", "fma", "f16c", "asimd", "sve", "sme")
"""Prefixes of the CPU flags that libraries choose kernels by."""
Bf16 = Literal["works", "without AMX", "fails"]
"""Support of bf16 on a CPU: full, only without AMX, or none because the process crashes."""


def describe_environment(environ: Mapping[str, str], *, device: str) -> dict[str, Any]:
    """Return the facts needed to reproduce the run elsewhere."""
    return {
        "time": time.time(),
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "device": device,
        "packages": {name: found for name in PACKAGES if (found := _version(name)) is not None},
        "variables": {name: environ[name] for name in VARIABLES if name in environ},
        "command": json.loads(environ[COMMAND_VARIABLE]) if COMMAND_VARIABLE in environ else typed_command(),
        "git": _git_commit(),
    }


def typed_command() -> list[str]:
    """Return the command of this process, without passwords."""
    return [Path(sys.argv[0]).name, *map(hide_passwords, sys.argv[1:])]


def cpu_name() -> str:
    """Return the processor's name from the kernel."""
    return _cpu_fact("model name") or platform.processor()


def vector_instructions() -> list[str]:
    """Return the vector instructions of this CPU, by the kernel's names; none if unknown."""
    return sorted(flag for flag in _cpu_fact("flags", "Features").split() if flag.startswith(VECTORS))


def _cpu_fact(*names: str) -> str:
    """Return the first processor's entry in /proc/cpuinfo under one of these names; empty if there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(names)), "")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """Return the commit of the working directory, marked if files differ from it; None outside a checkout.

    Where git cannot tell in time whether files differ, as on a slow disk, the mark says so.
    """
    commit = _git("rev-parse", "--verify", "HEAD")
    if commit is None:
        return None
    filters = _git("config", "--local", "--includes", "--name-only", "--get-regexp", r"^filter\..*\.(clean|process)$")
    off = [option for name in (filters or "").splitlines() for option in ("-c", f"{name}=")]
    same = ["diff", "--quiet", "--no-ext-diff", "--no-textconv", "--ignore-submodules", "HEAD"]
    answer = _run_git(*off, *same)
    marks = {0: "", 1: "-dirty"}
    return commit + marks.get(-1 if answer is None else answer.returncode, "-unknown")


def _git(*args: str) -> str | None:
    """Return the answer of git, None if it fails."""
    answer = _run_git(*args)
    return None if answer is None or answer.returncode != 0 else answer.stdout.strip()


def _run_git(*args: str) -> subprocess.CompletedProcess[str] | None:
    """Run git, None if it is missing or late. No command that the checkout's own configuration names is run."""
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", *args]
    try:
        return subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
