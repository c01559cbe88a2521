"""The engines of `paceline submit` besides Slurm: what they need to know, and the command of every node."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from paceline.core.errors import ConfigError, SettingError, flag
from paceline.core.start import Start
from paceline.launching.slurm_script import JobRequest, Lines

EngineName = Literal["slurm", "kubernetes", "ray", "print"]
ENGINE = Group("Engine", sort_key=2)
PORT = 29400
LONGEST_JOB_NAME = 52
"""Characters that leave room for "-INDEX" in the host name of a pod, which has at most 63."""
HOST_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
CLAIM = re.compile(r"(?P<name>[a-z0-9]([-.a-z0-9]*[a-z0-9])?):(?P<path>/\S*)")
SLURM_ONLY = ("partition", "account", "output", "sbatch", "array", "rendezvous_file")
NO_EFFECT = {
    "ray": (*SLURM_ONLY, "mem", "time", "job_name"),
    "print": (*SLURM_ONLY, "mem", "time", "job_name", "cpus_per_task"),
    "kubernetes": SLURM_ONLY,
    "slurm": (),
}
"""Flags of a job that an engine does not use."""
OF_RANKS = ("max_restarts", "timeout", "devices", "backend", "check_up", "trust", "init_method", "local_rank")
"""Flags of `paceline train` that workers of Ray do not get."""
MEMORY = re.compile(r"\d+[KMGT]?")
NEEDS = {"image": ("kubernetes",), "namespace": ("kubernetes",), "claim": ("kubernetes",), "address": ("ray",)}


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineRequest:
    """Where to run a job, and what engines other than Slurm need for it."""

    on: Annotated[EngineName, Parameter(group=ENGINE)] = "slurm"
    """The engine that runs the job; print shows the command of every node, to be started by hand."""
    image: Annotated[str | None, Parameter(group=ENGINE)] = None
    """With --on kubernetes: the container image, with Paceline installed."""
    namespace: Annotated[str | None, Parameter(group=ENGINE)] = None
    """With --on kubernetes: the namespace. Default: that of kubectl."""
    claim: Lines = ()
    """With --on kubernetes: NAME:/PATH, a PersistentVolumeClaim and where to mount it; may be repeated."""
    address: Annotated[str | None, Parameter(group=ENGINE)] = None
    """With --on ray: the address of the cluster, such as http://head:8265. Default: RAY_ADDRESS."""

    @property
    def mounts(self) -> dict[str, str]:
        """The claims, with the paths at which they are mounted."""
        return dict(text.split(":", 1) for text in self.claim)


def check_request(engine: EngineRequest, request: JobRequest, start: Start, runs_dir: Path) -> None:
    """Refuse flags that have no effect on an engine, and what it does not accept."""
    for name, engines in NEEDS.items():
        if getattr(engine, name) and engine.on not in engines:
            raise ConfigError(f"{flag(name)} has no effect with --on {engine.on}", hint=f"use --on {engines[0]}")
    for name in NO_EFFECT[engine.on]:
        if getattr(request, name) != getattr(JobRequest(), name):
            raise ConfigError(f"{flag(name)} has no effect with --on {engine.on}", hint=f"drop {flag(name)}")
    if engine.on == "ray":
        _check_workers(start, request, runs_dir)
    if engine.on == "kubernetes":
        _check_pods(engine, request, runs_dir)


def _check_workers(start: Start, request: JobRequest, runs_dir: Path) -> None:
    if (start.nproc or 1) > 1:
        raise ConfigError(
            "every worker of Ray is a rank; --nproc would start ranks in each of them",
            hint=f"drop --nproc after --, and use --ntasks-per-node {start.nproc}",
        )
    for name in OF_RANKS:
        if getattr(start, name) != getattr(Start(), name):
            raise ConfigError(f"{flag(name)} has no effect with --on ray", hint=f"drop {flag(name)} after --")
    gpus, workers = request.gpus_per_node or 0, request.tasks_on_node
    if gpus % workers:
        raise ConfigError(
            f"the {gpus} GPUs of a node cannot be divided equally between {workers} workers",
            hint=f"use --ntasks-per-node {gpus}",
        )
    if not runs_dir.is_absolute():
        raise ConfigError(
            f"--runs-dir {runs_dir} is another folder on every node of Ray, so a restart would not find the run",
            hint="add after --: train --runs-dir /PATH, which every node can see",
        )


def _check_pods(engine: EngineRequest, request: JobRequest, runs_dir: Path) -> None:
    if engine.image is None:
        raise ConfigError(
            "--on kubernetes needs --image", hint="add --image REGISTRY/NAME:TAG, with Paceline installed"
        )
    name = request.job_name
    if HOST_NAME.fullmatch(name) is None or len(name) > LONGEST_JOB_NAME:
        raise SettingError(
            "job_name",
            f'is "{name}", but becomes the host name of the pods',
            hint=f"use at most {LONGEST_JOB_NAME} lower-case letters, digits and hyphens, a letter first",
        )
    if request.mem is not None and MEMORY.fullmatch(request.mem) is None:
        raise SettingError("mem", f'is "{request.mem}"', hint="use a number and K, M, G or T, such as 64G")
    for text in engine.claim:
        if CLAIM.fullmatch(text) is None:
            raise SettingError("claim", f'is "{text}", but must be NAME:/PATH', hint="--claim training:/mnt/training")
    if not engine.claim:
        raise ConfigError(
            "the pods keep nothing when they end: no disk is mounted",
            hint="add --claim NAME:/PATH, a PersistentVolumeClaim, and after -- train --runs-dir /PATH/runs",
        )
    if not any(runs_dir.is_relative_to(path) for path in engine.mounts.values()):
        raise ConfigError(
            f"--runs-dir {runs_dir} is not on a mounted disk, so it is lost with the pods",
            hint=f"add after --: train --runs-dir {next(iter(engine.mounts.values()))}/runs",
        )


def node_args(args: Sequence[str], request: JobRequest, address: str, *, node: int | None = None) -> list[str]:
    """Return the arguments of `paceline` on a node: those of the user, and how the nodes connect."""
    several = ["--nnodes", str(request.nodes), "--rendezvous", f"{address}:{PORT}"] if request.nodes > 1 else []
    if several and node is not None:
        several += ["--node-rank", str(node)]
    nproc = ["--nproc", str(request.tasks_on_node)] if request.tasks_on_node > 1 else []
    return [*args, *nproc, *several]


def resuming(args: Sequence[str]) -> list[str]:
    """Return the arguments with --resume auto, so that a start after a preemption continues the run."""
    given = any(arg == "--resume" or arg.startswith("--resume=") for arg in args)
    return [*args] if given else [*args, "--resume", "auto"]


def commands_by_hand(request: JobRequest, python: str, args: Sequence[str]) -> str:
    """Return the commands that start a job by hand, one for every node; NODE0 stands for the first."""
    lines = [*request.setup] if request.setup else []
    for node in range(request.nodes):
        where = [f"# on node {node}"] if request.nodes > 1 else []
        lines += [*where, shlex.join([python, "-m", "paceline", *node_args(args, request, "NODE0", node=node)])]
    return "\n".join(lines) + "\n"
