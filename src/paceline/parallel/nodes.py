"""Launchers that start one process per node, which then starts the ranks: Kubeflow Trainer and SkyPilot."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from paceline.core.errors import ConfigError
from paceline.core.start import Start
from paceline.parallel.launchers import find_launcher, in_slurm_task
from paceline.parallel.ports import derived_port

TORCHRUN_PORT = "29500"
"""torchrun's default port for connecting nodes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One node of a launcher that starts one process per node."""

    launcher: str
    nnodes: str
    node_rank: str | None
    nproc: str | None = None
    max_restarts: str | None = None
    rendezvous: str | None
    variable: str
    """The variable with the number of nodes."""
    address: str
    """The variable with the address at which they connect."""

    @property
    def is_one_of_many(self) -> bool:
        """Tell whether there are other nodes."""
        return self.nnodes.rpartition(":")[2] != "1"


def detect_node(environ: Mapping[str, str]) -> Node | None:
    """Return the node whose ranks this process must start; None if it is a rank itself, or has no launcher."""
    is_rank = "LOCAL_RANK" in environ and "WORLD_SIZE" in environ
    if is_rank or find_launcher(environ) is not None or in_slurm_task(environ):
        return None
    if environ.get("PET_NNODES"):  # a PyTorchJob also has RANK and WORLD_SIZE, which count pods and processes
        return _kubeflow(environ)
    if environ.get("SKYPILOT_NUM_NODES") and "WORLD_SIZE" not in environ:
        return _skypilot(environ)
    return None


def join_nodes(start: Start, environ: Mapping[str, str]) -> Start:
    """Return how to start the ranks of this node: from the flags, or else from its launcher."""
    index = _number(environ.get("JOB_COMPLETION_INDEX"))
    if index is not None and start.nnodes is not None and start.nnodes.isdigit() and start.node_rank is None:
        return replace(start, node_rank=index)  # the index of a pod in an indexed job of Kubernetes
    node = detect_node(environ)
    if node is None or start.by_hand or start.nnodes is not None:
        return start
    nproc = start.nproc or _number(node.nproc)  # None for "auto" or "gpu"
    restarts = _number(node.max_restarts) if start.max_restarts is None else start.max_restarts
    if not node.is_one_of_many:
        return replace(start, nproc=nproc, max_restarts=restarts)
    if node.rendezvous is None:
        raise ConfigError(
            f"{node.variable} is {node.nnodes}, but {node.address} has no address at which the nodes connect",
            hint=f"add --nnodes {node.nnodes} --node-rank N --rendezvous HOST:PORT, with an address of node 0",
        )
    where = {"nnodes": node.nnodes, "node_rank": _number(node.node_rank), "rendezvous": node.rendezvous}
    return replace(start, nproc=nproc, max_restarts=restarts, **where)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def would_train_alone(node: Node) -> ConfigError:
    """Return the error for a process that would train without the other nodes."""
    given = f"{node.variable}={node.nnodes}"
    return ConfigError(
        f"{node.launcher} runs this on {node.nnodes} nodes ({given}), but here it would train alone",
        hint="use paceline train, paceline.launch or torchrun to join the nodes; "
        f"to train alone add --nnodes 1, or unset {node.variable}",
    )


def _kubeflow(environ: Mapping[str, str]) -> Node:
    """Read the PET_… variables, which Kubeflow sets as options for torchrun."""
    host, port = environ.get("PET_MASTER_ADDR"), environ.get("PET_MASTER_PORT", TORCHRUN_PORT)
    return Node(
        launcher="Kubeflow",
        nnodes=environ["PET_NNODES"],
        node_rank=environ.get("PET_NODE_RANK"),
        nproc=environ.get("PET_NPROC_PER_NODE"),
        max_restarts=environ.get("PET_MAX_RESTARTS"),
        rendezvous=environ.get("PET_RDZV_ENDPOINT") or (f"{host}:{port}" if host else None),
        variable="PET_NNODES",
        address="PET_MASTER_ADDR",
    )


def _skypilot(environ: Mapping[str, str]) -> Node:
    hosts = environ.get("SKYPILOT_NODE_IPS", "").split()
    port = environ.get("MASTER_PORT") or derived_port(environ.get("SKYPILOT_TASK_ID", ""), *hosts)
    return Node(
        launcher="SkyPilot",
        nnodes=environ["SKYPILOT_NUM_NODES"],
        node_rank=environ.get("SKYPILOT_NODE_RANK"),
        rendezvous=f"{hosts[0]}:{port}" if hosts else None,
        variable="SKYPILOT_NUM_NODES",
        address="SKYPILOT_NODE_IPS",
    )


def first_host(nodes: str) -> str:
    """Return the first host of a Slurm list such as "gpu[03-05,7],login1"."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", nodes if first is None else first[0])
