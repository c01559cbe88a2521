"""Starting ranks of `paceline train` as processes, from the command line and from Python."""

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from paceline.core.config import Config
from paceline.core.errors import ConfigError, PacelineError, RanksError
from paceline.core.live_code import refuse_called_code
from paceline.core.load import write_config
from paceline.core.start import Start
from paceline.core.world import World
from paceline.launching.child import inherited
from paceline.launching.launch_plan import LaunchPlan, plan_launch
from paceline.launching.local import run_ranks
from paceline.launching.outcomes import read_result
from paceline.parallel.detect import detect_world
from paceline.parallel.nodes import join_nodes
from paceline.parallel.visible_gpus import visible_devices
from paceline.records.entries import RunResult
from paceline.records.environment import COMMAND_VARIABLE, typed_command


def launch(
    config: Config,
    *,
    nproc: int = 1,
    nnodes: int | str | None = None,
    node_rank: int | None = None,
    rendezvous: str | None = None,
    max_restarts: int | None = None,
    timeout: float = 300.0,
    resume: Path | str | None = None,
) -> RunResult:
    """Train with several ranks and return their result; from a script or a notebook.

    On one machine nproc is enough. Several machines, or several notebooks, each call it with their node_rank and the
    same rendezvous, an address of node 0 and a free port: the lead shows the progress, and all return the same result.
    Ranks are separate processes, so models and data sets are given as "my.py:build", not defined in a notebook cell.
    """
    start = Start(
        nproc=nproc,
        nnodes=None if nnodes is None else str(nnodes),
        node_rank=node_rank,
        rendezvous=rendezvous,
        max_restarts=max_restarts,
        timeout=timeout,
    )
    start = join_nodes(start, os.environ)
    refuse_ranks("launch", start)
    refuse_called_code(value for value in config.as_dict().values() if isinstance(value, str))
    plan = plan_launch(config, start, World(), os.environ)
    if plan is None:
        raise RanksError(
            f"nproc={nproc} with --mode {config.mode} is one process",
            hint="call paceline.train instead, or launch with nnodes=2 and rendezvous=HOST:PORT",
        )
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        file = Path(folder) / "result.json"
        args = ["--result-file", str(file), *(["--resume", str(resume)] if resume else [])]
        code = launch_ranks(plan, config, start, args)
        if not file.exists():
            raise PacelineError(f"the ranks ended with exit code {code}; their error is printed above")
        return read_result(file)


def refuse_ranks(command: str, start: Start) -> None:
    """Refuse to start ranks in a process that is one of several ranks itself."""
    world = None if start.by_hand else detect_world(os.environ, start)
    if world is None or world.size > 1:
        by = "--rank" if world is None else world.launcher
        raise ConfigError(
            f"{command} starts its own ranks, but {by} makes this process one of several ranks",
            hint="run it in a single process",
        )


def launch_ranks(plan: LaunchPlan, config: Config, start: Start, args: Sequence[str], *, command: str = "train") -> int:
    """Resolve the settings once, run the ranks of this node with them, and return their exit code."""
    environ = inherited(os.environ) | {COMMAND_VARIABLE: json.dumps(typed_command())}
    if start.devices:
        environ["CUDA_VISIBLE_DEVICES"] = visible_devices(start.devices, environ)
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        file = Path(folder) / "settings.toml"
        write_config(config, file)
        return run_ranks(plan, [command, "--config", str(file), "--timeout", str(start.timeout), *args], environ)
