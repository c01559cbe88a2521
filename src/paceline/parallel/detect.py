"""Detect the rank of this process, from flags or from the variables of a launcher."""

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.core.errors import ConfigError
from paceline.core.start import Start
from paceline.core.world import World
from paceline.parallel.launchers import (
    ADDRESSED_TRACES,
    BATCH_JOBS,
    COMMON_TRACES,
    TRACES,
    Launcher,
    find_launcher,
    in_slurm_task,
)
from paceline.parallel.nodes import detect_node, first_host, would_train_alone
from paceline.parallel.ports import derived_port
from paceline.parallel.visible_gpus import count_gpus

Environ = Mapping[str, str]
ROUND_VARIABLE = "_PACELINE_ROUND"
"""How often the ranks of our own launcher have started again, the same number on every node."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
BY_HAND = (
    "add --rank R --world-size N --init-method tcp://HOST:PORT in every process; --rank 0 --world-size 1 to train alone"
)


def detect_world(environ: Environ, start: Start) -> World:
    """Return the world that flags or a launcher describe, or a world of one if there is no sign of other ranks."""
    if start.local_rank is not None:
        environ = {**environ, "LOCAL_RANK": str(start.local_rank)}
    if start.by_hand:
        return _from_flags(start, environ)
    node = detect_node(environ)
    if node is not None and node.is_one_of_many:
        if start.nnodes is None:
            raise would_train_alone(node)
        return World()
    return _detect_rank(environ, start)


def _detect_rank(environ: Environ, start: Start) -> World:
    if start.node_range[1] > 1 and "TORCHELASTIC_RUN_ID" not in environ:  # the flags describe the other nodes
        return World()
    if "WORLD_SIZE" in environ:
        return _from_torchrun(environ)
    launcher = find_launcher(environ)
    if launcher is not None:
        return _from_launcher(launcher, environ)
    if in_slurm_task(environ):
        return _from_slurm(environ)
    if start.nnodes is None:
        _refuse_traces(environ)
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
        launcher="flags",
        init_method=_by_env(environ) if start.init_method == "env://" else start.init_method,
        **_slurm_launch(environ, by_hand=True),
    )


def _from_torchrun(environ: Environ) -> World:
    launcher = "torchrun" if "TORCHELASTIC_RUN_ID" in environ else "environment"
    if "RANK" not in environ:
        launcher, environ = _with_rank(launcher, environ)
    rank, size = _rank_of(environ, "RANK", "WORLD_SIZE")
    if size > 1:
        _need(environ, "MASTER_ADDR", "MASTER_PORT")
    local_rank, local_size = place_on_host(environ, rank)
    return World(
        rank=rank,
        size=size,
        local_rank=local_rank,
        local_size=local_size,
        launcher=launcher,
        init_method=_by_env(environ),
        **_torchrun_launch(environ),
    )


def _with_rank(launcher: str, environ: Environ) -> tuple[str, Environ]:
    """Return the launcher, and its variables with RANK: Lightning and indexed jobs of Kubernetes set others for it."""
    if "NODE_RANK" in environ and "LOCAL_RANK" in environ:
        node, local_rank = _number(environ, "NODE_RANK"), _number(environ, "LOCAL_RANK")
        if node > 0 and "LOCAL_WORLD_SIZE" not in environ:
            raise ConfigError(
                f"this is a rank of node {node} (NODE_RANK), but neither RANK nor LOCAL_WORLD_SIZE is set",
                hint="set LOCAL_WORLD_SIZE to the number of ranks per node, on every node",
            )
        local_size = _number(environ, "LOCAL_WORLD_SIZE", default=_number(environ, "WORLD_SIZE"))
        ranks = {"RANK": str(node * local_size + local_rank), "LOCAL_WORLD_SIZE": str(local_size)}
        return "Lightning", {**environ, **ranks}
    if "JOB_COMPLETION_INDEX" in environ:
        return "Kubernetes", {**environ, "RANK": environ["JOB_COMPLETION_INDEX"]}
    return launcher, environ


def _by_env(environ: Environ) -> str:
    """Return the address from MASTER_ADDR and MASTER_PORT; torchrun already has a store there."""
    host, port = environ.get("MASTER_ADDR"), environ.get("MASTER_PORT")
    if ROUND_VARIABLE in environ:
        return f"agent://{host}:{port}"
    if "TORCHELASTIC_RUN_ID" in environ or not (host and port):
        return "env://"
    return f"tcp://{host}:{port}"


def torchrun_rank(environ: Environ) -> tuple[int, int]:
    """Return this process's rank and the number of restarts, as set by torchrun; 0 without torchrun."""
    return _number(environ, "RANK", default=0), _number(environ, "TORCHELASTIC_RESTART_COUNT", default=0)


def master_address(environ: Environ) -> str:
    """Return the host at which ranks connect with env://."""
    return environ.get("MASTER_ADDR", "")


def has_one_task_per_node(environ: Environ) -> bool:
    """Tell whether Slurm runs one task on each node."""
    return environ.get("SLURM_NTASKS") == environ.get("SLURM_NNODES")


def place_on_host(environ: Environ, rank: int) -> tuple[int, int]:
    """Return the local rank and local size of torchrun's variables.

    Without LOCAL_RANK, it is the index of a visible GPU: ranks may share a host, or have a container each.
    """
    local_size = _number(environ, "LOCAL_WORLD_SIZE", default=1)
    if "LOCAL_RANK" in environ:
        return _number(environ, "LOCAL_RANK"), local_size
    return rank % max(1, count_gpus(environ)), local_size


def _from_launcher(launcher: Launcher, environ: Environ) -> World:
    rank, size = _rank_of(environ, launcher.rank, launcher.size)
    nodes = max(1, _first_number(environ, launcher.nodes, default=1))
    local_size = max(1, _first_number(environ, launcher.local_size, default=-(-size // nodes)))
    job = _first(environ, launcher.job)
    port = environ.get("MASTER_PORT") or derived_port(job or _first(environ, BATCH_JOBS) or "0")
    return World(
        rank=rank,
        size=size,
        local_rank=_first_number(environ, launcher.local_rank, default=rank % local_size),
        local_size=local_size,
        launcher=launcher.name,
        init_method=f"tcp://{_host_of_lead(launcher, environ, on_one_host=size == local_size)}:{port}",
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
        launcher="Slurm",
        init_method=f"tcp://{slurm_init_method(environ)}",
        **_slurm_launch(environ),
    )


def _torchrun_launch(environ: Environ) -> dict[str, Any]:
    """Return a name for this launch by torchrun, which Slurm may restart as a whole.

    torchrun's run id repeats ("none", or the user's choice), but each agent creates a folder with a random name and
    keeps it when it restarts its ranks.
    """
    launch = _slurm_launch(environ)
    restarts = _number(environ, "TORCHELASTIC_RESTART_COUNT", default=0)
    restarts = _number(environ, ROUND_VARIABLE, default=restarts)
    agent = "/".join(environ.get("TORCHELASTIC_ERROR_FILE", "").split("/")[-5:-3]) or None
    return {"launch_id": agent} | launch | {"attempt": launch.get("attempt", 0) + restarts}


def _slurm_launch(environ: Environ, *, by_hand: bool = False) -> dict[str, Any]:
    """Return a name for the step of a Slurm job, with the number of requeues.

    Ranks that are started by hand may be separate steps or array tasks, so they are named after the whole job.
    """
    job = environ.get("SLURM_JOB_ID")
    if job is None:
        return {}
    name = environ.get("SLURM_ARRAY_JOB_ID", job) if by_hand else f"{job}.{environ.get('SLURM_STEP_ID', '0')}"
    return {"launch_id": f"slurm-{name}", "attempt": slurm_requeues(environ)}


def slurm_requeues(environ: Environ) -> int:
    """Return the number of times that Slurm has requeued this job."""
    return _number(environ, "SLURM_RESTART_COUNT", default=0)


def slurm_job(world: World, environ: Environ) -> str | None:
    """Return the job that this rank requeues: the lead that of all ranks, each rank of an array its own."""
    array = environ.get("SLURM_ARRAY_JOB_ID")
    if array is not None and (world.launcher == "flags" or world.is_lead):
        return f"{array}_{environ['SLURM_ARRAY_TASK_ID']}"  # one of its tasks has the id of the whole array
    return environ.get("SLURM_JOB_ID") if world.is_lead else None


def slurm_init_method(environ: Environ) -> str:
    """Return HOST:PORT for a Slurm step: MASTER_ADDR, or else its first node; another port for each attempt."""
    nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or "127.0.0.1"
    attempt = (environ["SLURM_JOB_ID"], environ.get("SLURM_STEP_ID", "0"), environ.get("SLURM_RESTART_COUNT", "0"))
    host, port = environ.get("MASTER_ADDR") or first_host(nodes), environ.get("MASTER_PORT") or derived_port(*attempt)
    if host in LOOPBACK and _number(environ, "SLURM_NNODES", default=1) > 1:
        raise ConfigError(
            f"MASTER_ADDR={host} is another host on each of the {environ['SLURM_NNODES']} nodes",
            hint="set MASTER_ADDR to the host of rank 0, or unset it to use the first node",
        )
    return f"{host}:{port}"


def _tasks_here(environ: Environ, *, default: int) -> int:
    """Read the number of tasks on this node from "2(x3),1" and the node's index."""
    counts: list[int] = []
    for group in filter(None, environ.get("SLURM_STEP_TASKS_PER_NODE", "").split(",")):
        tasks, _, repeat = group.partition("(x")
        counts += [int(tasks)] * int(repeat.rstrip(")") or 1)
    node = _number(environ, "SLURM_NODEID", default=0)
    return counts[node] if node < len(counts) else default


def _host_of_lead(launcher: Launcher, environ: Environ, *, on_one_host: bool) -> str:
    host = environ.get("MASTER_ADDR", "127.0.0.1" if on_one_host else "")
    if not host:
        raise ConfigError(
            f"{launcher.name} started ranks on several hosts, but MASTER_ADDR is not set",
            hint="set MASTER_ADDR to the host of rank 0 in every process, as in mpirun -x MASTER_ADDR=HOST",
        )
    return host


def _need(environ: Environ, *names: str) -> None:
    for name in names:
        if not environ.get(name):
            raise ConfigError(
                f"--init-method env:// is used, but {name} is not set",
                hint="set MASTER_ADDR and MASTER_PORT, or use --init-method tcp://HOST:PORT",
            )


def _rank_of(environ: Environ, rank_name: str, size_name: str) -> tuple[int, int]:
    size = _number(environ, size_name)
    rank = _number(environ, rank_name, default=0 if size == 1 else None)
    if not 0 <= rank < size:
        raise ConfigError(
            f"{rank_name}={rank} is not a rank of {size_name}={size}", hint=f"ranks are numbered from 0 to {size - 1}"
        )
    return rank, size


def _first(environ: Environ, names: Sequence[str]) -> str | None:
    return next((environ[name] for name in names if environ.get(name)), None)


def _first_number(environ: Environ, names: Sequence[str], *, default: int) -> int:
    return next((_number(environ, name) for name in names if name in environ), default)


def _number(environ: Environ, name: str, *, default: int | None = None) -> int:
    text = environ.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdigit():
        given = "is not set" if text is None else f'is "{text}", not a number'
        raise ConfigError(f"the environment describes one of several ranks, but {name} {given}", hint=BY_HAND)
    return int(text)


def _refuse_traces(environ: Environ) -> None:
    """Refuse a process of a launcher that does not set the number of ranks."""
    in_slurm_shell = "SLURM_STEP_ID" in environ  # a step of one task, which may have a rank in PMIx
    found = [] if in_slurm_shell else [name for name in TRACES if name in environ]
    found += [name for name in COMMON_TRACES if environ.get(name, "").isdigit() and int(environ[name]) > 0]
    found += [name for name in ADDRESSED_TRACES if name in environ and environ.get("MASTER_ADDR")]
    if found:
        raise ConfigError(
            f"{found[0]}={environ[found[0]]} suggests that this is one of several ranks, but their number is not set",
            hint=BY_HAND,
        )
