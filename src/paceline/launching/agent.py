"""torchrun as a child process: it stops when the launcher goes, and connects the nodes before it starts ranks."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.core.errors import RanksError
from paceline.core.limits import raise_open_files
from paceline.core.processes import end_with_parent
from paceline.launching.outcomes import report_failure
from paceline.launching.reaper import become_reaper


class Agent:
    """torchrun below its reaper, and its output."""

    def __init__(
        self,
        args: Sequence[str],
        environ: Mapping[str, str],
        *,
        nodes: Mapping[str, Any] | None = None,
        stdout: int | None = None,
    ) -> None:
        """Start torchrun with these arguments, once all nodes have connected.

        `nodes` are the arguments of `open_node_store`, None on a single node. `stdout` is a file for the output of
        the ranks, None to inherit.
        """
        raise_open_files()  # torchrun holds a connection to every rank of every node, and its ranks inherit the limit
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(os.getpid()), json.dumps(nodes), *args],
            env=dict(environ),
            stdout=stdout,
            stderr=self._log,
            start_new_session=True,  # only the launcher receives Ctrl-C, and forwards it once
        )

    def output(self) -> str:
        """Return what torchrun printed: warnings, and its summary of a failure."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")


def main() -> None:
    """Become a reaper; in its child, connect the nodes, then run torchrun."""
    launcher, nodes = int(sys.argv[1]), json.loads(sys.argv[2])
    end_with_parent(parent=launcher)
    become_reaper()
    from torch.distributed import run  # noqa: PLC0415 - the launcher itself never imports torch

    store = None if nodes is None else _connect_nodes(nodes)
    run.main(sys.argv[3:])
    del store  # not earlier: torchrun used its server


def _connect_nodes(nodes: dict[str, Any]) -> object:
    """Return the store of all launchers once they are connected; on failure, report it to our launcher and exit."""
    from paceline.parallel.rendezvous import open_node_store  # noqa: PLC0415 - it imports torch

    try:
        return open_node_store(**nodes)
    except RanksError as problem:
        report_failure(problem, os.environ)
        sys.exit(problem.exit_code)


if __name__ == "__main__":
    main()
