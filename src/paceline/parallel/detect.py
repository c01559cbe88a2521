"""Finding out which rank this process is. The only place that reads it from the environment."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

from paceline.core.errors import ConfigError
from paceline.core.start import Start
from paceline.core.world import World
from paceline.parallel.hostlist import first_host

Environ = Mapping[str, str]
DERIVED_PORTS = range(20_000, 30_000)
"""Ports for jobs whose launcher gives none: below those that systems hand out to outgoing connections."""


def detect_world(environ: Environ, start: Start) -> World:
    """Return the world that flags, torchrun, mpirun or Slurm describe, or a world of one."""
    if start.local_rank is not None:
        environ = {**environ, "LOCAL_RANK": str(start.local_rank)}
    if start.by_hand:
        return _from_flags(start, environ)
    for is_there, read in SOURCES:
        if is_there(environ):
            return read(environ)
    return World()


def _from_flags(start: Start, environ: Environ) -> World:
    assert start.rank is not None
    assert start.world_size is not None
    if start.init_method == "env://" and start.world_size > 1:
        _need(environ, "MASTER_ADDR", "MASTER_PORT")
    return World(
        rank=start.rank,
        size=start.world_size,
        local_rank=_number(environ, "LOCAL_RANK", default=0),
        told_by="flags",
        meeting=start.init_method,
        **_slurm_launch(environ, by_hand=True),
    )


def _from_torchrun(environ: Environ) -> World:
    rank, size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    if not 0 <= rank < size:
        raise ConfigError(f"RANK={rank} is not a rank of WORLD_SIZE={size}", hint=f"ranks go from 0 to {size - 1}")
    if size > 1:
        _need(environ, "MASTER_ADDR", "MASTER_PORT")
    return World(
        rank=rank,
        size=size,
        local_rank=_number(environ, "LOCAL_RANK", default=rank),
        local_size=_number(environ, "LOCAL_WORLD_SIZE", default=1),
        told_by="torchrun" if "TORCHELASTIC_RUN_ID" in environ else "environment",
        meeting="env://",
        **_torchrun_launch(environ),
    )


def _from_open_mpi(environ: Environ) -> World:
    size, local_size = _number(environ, "OMPI_COMM_WORLD_SIZE"), _number(environ, "OMPI_COMM_WORLD_LOCAL_SIZE")
    job = environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or "0"
    return World(
        rank=_number(environ, "OMPI_COMM_WORLD_RANK"),
        size=size,
        local_rank=_number(environ, "OMPI_COMM_WORLD_LOCAL_RANK"),
        local_size=local_size,
        told_by="mpirun",
        meeting=_meeting_of_mpi(environ, job, on_one_host=size == local_size),
        launch_id=job,
    )


def _from_pmi(environ: Environ) -> World:
    size = _number(environ, "PMI_SIZE")
    local_size = _number(environ, "MPI_LOCALNRANKS", default=size)
    job = environ.get("PMI_JOBID") or environ.get("HYDI_CONTROL_FD") or environ.get("PMI_PORT") or "0"
    return World(
        rank=_number(environ, "PMI_RANK"),
        size=size,
        local_rank=_number(environ, "MPI_LOCALRANKID", default=_number(environ, "PMI_RANK")),
        local_size=local_size,
        told_by="mpirun",
        meeting=_meeting_of_mpi(environ, job, on_one_host=size == local_size),
        launch_id=job,
    )


def _from_slurm(environ: Environ) -> World:
    size = _number(environ, "SLURM_NTASKS")
    nodes = _number(environ, "SLURM_NNODES", default=1)
    return World(
        rank=_number(environ, "SLURM_PROCID"),
        size=size,
        local_rank=_number(environ, "SLURM_LOCALID", default=0),
        local_size=_tasks_here(environ, default=-(-size // nodes)),
        told_by="Slurm",
        meeting=f"tcp://{slurm_meeting(environ)}",
        **_slurm_launch(environ),
    )


def _torchrun_launch(environ: Environ) -> dict[str, Any]:
    """Return what names a launch by torchrun, which Slurm may start again as a whole.

    Its own id repeats ("none", or what the user chose), but each of its agents draws the name of a folder of its own,
    which stays when the agent starts its ranks again.
    """
    launch = _slurm_launch(environ)
    restarts = _number(environ, "TORCHELASTIC_RESTART_COUNT", default=0)
    agent = "/".join(environ.get("TORCHELASTIC_ERROR_FILE", "").split("/")[-5:-3]) or None
    return {"launch_id": agent} | launch | {"attempt": launch.get("attempt", 0) + restarts}


def _slurm_launch(environ: Environ, *, by_hand: bool = False) -> dict[str, Any]:
    """Return what names the step of a Slurm job, and how often it was queued again.

    Ranks that are started by hand may be steps or array tasks of their own, so the whole job is their name.
    """
    job = environ.get("SLURM_JOB_ID")
    if job is None:
        return {}
    name = environ.get("SLURM_ARRAY_JOB_ID", job) if by_hand else f"{job}.{environ.get('SLURM_STEP_ID', '0')}"
    return {"launch_id": f"slurm-{name}", "attempt": slurm_requeues(environ)}


def slurm_requeues(environ: Environ) -> int:
    """Return how often Slurm has queued this job again."""
    return _number(environ, "SLURM_RESTART_COUNT", default=0)


def in_slurm_task(environ: Environ) -> bool:
    """Tell whether srun started this process, rather than sbatch or salloc the shell around it."""
    return "SLURM_PROCID" in environ and environ.get("SLURM_STEP_ID", "").isdigit()


def slurm_job(world: World, environ: Environ) -> str | None:
    """Return the job that this rank speaks for to Slurm: the lead for all, or each rank of an array for its own."""
    array = environ.get("SLURM_ARRAY_JOB_ID")
    if array is not None and (world.told_by == "flags" or world.is_lead):
        return f"{array}_{environ['SLURM_ARRAY_TASK_ID']}"  # the number of one of them is that of the whole array
    return environ.get("SLURM_JOB_ID") if world.is_lead else None


def slurm_meeting(environ: Environ) -> str:
    """Return HOST:PORT for a Slurm step: its first node, and a port of its own for each attempt."""
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or "127.0.0.1"
    attempt = (environ["SLURM_JOB_ID"], environ.get("SLURM_STEP_ID", "0"), environ.get("SLURM_RESTART_COUNT", "0"))
    return f"{first_host(nodes)}:{derived_port(*attempt)}"


def derived_port(*names: str) -> int:
    """Return a port that all ranks of a launch compute alike, and other launches most likely not."""
    bits = hashlib.sha256("\0".join(names).encode(), usedforsecurity=False).digest()
    return DERIVED_PORTS[int.from_bytes(bits[:8], "big") % len(DERIVED_PORTS)]


def _tasks_here(environ: Environ, *, default: int) -> int:
    """Read how many tasks run on this node from "2(x3),1" and the node's number."""
    counts: list[int] = []
    for group in filter(None, environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(",")):
        tasks, _, repeat = group.partition("(x")
        counts += [int(tasks)] * int(repeat.rstrip(")") or 1)
    node = _number(environ, "SLURM_NODEID", default=0)
    return counts[node] if node < len(counts) else default


def _meeting_of_mpi(environ: Environ, job: str, *, on_one_host: bool) -> str:
    host = environ.get("MASTER_ADDR", "127.0.0.1" if on_one_host else "")
    if not host:
        raise ConfigError(
            "mpirun started ranks on several hosts, but nobody said where they meet",
            hint="mpirun -x MASTER_ADDR=host-of-rank-0 …",
        )
    return f"tcp://{host}:{environ.get('MASTER_PORT') or derived_port(job)}"


def _need(environ: Environ, *names: str) -> None:
    for name in names:
        if not environ.get(name):
            raise ConfigError(
                f"the ranks are to meet by env://, but {name} is not set",
                hint="set MASTER_ADDR and MASTER_PORT, or use --init-method tcp://HOST:PORT",
            )


def _number(environ: Environ, name: str, *, default: int | None = None) -> int:
    text = environ.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdigit():
        given = "is not set" if text is None else f'is "{text}", not a number'
        raise ConfigError(
            f"the environment says that this is one of several ranks, but {name} {given}",
            hint="start it with torchrun, srun or mpirun, or unset WORLD_SIZE to train alone",
        )
    return int(text)


SOURCES: tuple[tuple[Callable[[Environ], bool], Callable[[Environ], World]], ...] = (
    (lambda environ: "WORLD_SIZE" in environ, _from_torchrun),
    (lambda environ: "OMPI_COMM_WORLD_SIZE" in environ, _from_open_mpi),
    (lambda environ: "PMI_RANK" in environ and not in_slurm_task(environ), _from_pmi),
    (in_slurm_task, _from_slurm),
)
