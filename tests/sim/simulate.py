"""Runs commands of Paceline on simulated GPUs, in new processes: many in a few workers, or one with all its ranks."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import paceline
from paceline.parallel.amx import LIMIT, WITHOUT_AMX
from tests.sim.entries import FAULTS

ROOT = Path(__file__).parents[2]
SECONDS = 280


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """A command line, its number of ranks, and variables; {rank} in a variable is the rank."""

    name: str
    argv: Sequence[str]
    world: int = 1
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """What one rank of a command did."""

    code: int
    output: str
    entries: list[list[Any]]
    operations: dict[str, int]
    calls: dict[str, int]

    def faults(self, phase: str) -> list[list[Any]]:
        """Return the faults in a phase, each with its line and number."""
        return [entry for entry in self.entries if entry[0] in FAULTS and entry[1] == phase]

    def notes(self) -> list[str]:
        """Return the texts of notes."""
        return [entry[2] for entry in self.entries if entry[0] == "note"]

    @property
    def operations_per_step(self) -> float:
        """Device operations per training step."""
        return self.operations.get("step", 0) / self.calls["step"]


def simulated_environment(gpus: int = 2, **more: str) -> dict[str, str]:
    """Return the environment of a process, and of all its children, with simulated GPUs."""
    paths = [ROOT / "tests" / "sim" / "site", ROOT, Path(paceline.__file__).parents[1]]
    visible = ",".join(map(str, range(gpus)))
    usual = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "CUDA_VISIBLE_DEVICES": visible, "OMP_NUM_THREADS": "1"}
    return {LIMIT: WITHOUT_AMX} | os.environ | usual | more  # some CPUs announce AMX and crash at it


def run_in_workers(commands: Sequence[Command], folder: Path, gpus: int = 2) -> dict[str, list[Result]]:
    """Run commands one after the other, in as many processes as the largest has ranks; return results by rank."""
    path = folder / "commands.json"
    path.write_text(json.dumps([asdict(command) for command in commands]), encoding="utf-8")
    environ = simulated_environment(gpus) | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    size = max(command.world for command in commands)
    workers = []
    for rank in range(size):
        line = [sys.executable, "-m", "tests.sim.worker", str(path), str(rank)]
        workers.append(subprocess.Popen(line, env=environ, cwd=folder, stderr=subprocess.PIPE, text=True))
    try:
        errors = [worker.communicate(timeout=SECONDS)[1] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0] * size, "\n".join(errors)[-4000:]
    found = [json.loads((folder / f"result-{rank}.json").read_text(encoding="utf-8")) for rank in range(size)]
    return {
        command.name: [Result(**found[rank][command.name]) for rank in range(command.world)] for command in commands
    }
