"""bf16 on CPUs with AMX: some virtual machines announce AMX without enabling it, and torch crashes with SIGILL."""

import subprocess
import sys
from collections.abc import Mapping, MutableMapping

import torch

from paceline.core.errors import ConfigError
from paceline.parallel.team import Team
from paceline.records.environment import Bf16, vector_instructions

LIMIT, WITHOUT_AMX = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
"""The variable that oneDNN reads before its first primitive, and the value that disables AMX and nothing else."""
LIMITS = (LIMIT, "DNNL_MAX_CPU_ISA")
"""Its names; the second is the old one."""
SECONDS, SECONDS_AT_LEAST = 120, 10
"""Bounds in seconds for the probe, which may take a third of --timeout."""

PROBE = """
import resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
import torch
from torch import nn
torch.set_num_threads(1)
images = torch.randn(8, 64, 16, 16)
for layout in (torch.contiguous_format, torch.channels_last):
    model = nn.Sequential(nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 14 * 14, 64))
    with torch.autocast("cpu", torch.bfloat16):
        scores = model.to(memory_format=layout)(images.to(memory_format=layout))
    scores.float().sum().backward()
"""


def announces_amx() -> bool:
    """Tell whether this CPU announces AMX."""
    return any(name.startswith("amx") for name in vector_instructions())


def try_bf16(environ: Mapping[str, str], seconds: float = SECONDS) -> Bf16:
    """Train a layer in bf16 in a child process, with AMX and without, and return what works."""
    if _survives(environ, seconds):
        return "works"
    return "without AMX" if _survives({**environ, LIMIT: WITHOUT_AMX}, seconds) else "fails"


def _survives(environ: Mapping[str, str], seconds: float) -> bool:
    """Tell whether the probe does not crash. Training reports any other failure."""
    command = [sys.executable, "-c", PROBE]
    try:
        done = subprocess.run(command, env=environ, check=False, capture_output=True, timeout=seconds)
    except (OSError, subprocess.TimeoutExpired):
        return True
    return done.returncode >= 0


def find_bf16(team: Team, environ: Mapping[str, str]) -> list[Bf16]:
    """Return how each rank can compute in bf16. One rank of a host tries it, and only where AMX is announced.

    Collective: every rank must call it.
    """
    own = (team.world.host, _is_doubtful(team.device, environ))
    everyone = team.gather(own)
    tries = own[1] and everyone.index(own) == team.world.rank
    mine: Bf16 = try_bf16(environ, min(SECONDS, max(SECONDS_AT_LEAST, team.timeout / 3))) if tries else "works"
    found: list[Bf16] = team.gather(mine)
    return [found[everyone.index(theirs)] for theirs in everyone]


def limit_isa(team: Team, environ: MutableMapping[str, str]) -> str | None:
    """Turn AMX off where bf16 crashes with it, and return a sentence about it. Collective: every rank must call it.

    oneDNN reads the variable once, so this must come before the first layer that computes in this process.
    """
    found, hosts = find_bf16(team, environ), team.gather(team.world.host)
    for host, state in zip(hosts, found, strict=True):
        if state == "fails":
            raise ConfigError(f"torch crashes on {host} when it computes in bf16", hint="use --precision fp32")
    if found[team.world.rank] == "without AMX":
        environ[LIMIT] = WITHOUT_AMX
    limited = dict.fromkeys(host for host, state in zip(hosts, found, strict=True) if state == "without AMX")
    if not limited:
        return None
    where = ", ".join(limited)
    return f"torch crashes on {where} when bf16 uses AMX; {LIMIT}={WITHOUT_AMX} was set, so bf16 uses AVX-512"


def _is_doubtful(device: torch.device, environ: Mapping[str, str]) -> bool:
    return device.type == "cpu" and not any(name in environ for name in LIMITS) and announces_amx()
