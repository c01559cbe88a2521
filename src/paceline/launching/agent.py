"""torchrun as a child process, which stops when the launcher goes."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from paceline.core.limits import raise_open_files
from paceline.core.processes import end_with_parent
from paceline.launching.reaper import become_reaper
from paceline.parallel.node_rounds import NodePlan


class Agent:
    """torchrun below its reaper, and its output."""

    def __init__(
        self,
        args: Sequence[str],
        environ: Mapping[str, str],
        *,
        nodes: NodePlan | None = None,
        stdout: int | None = None,
    ) -> None:
        """Start torchrun with these arguments.

        `nodes` is how it finds those of other nodes, None for torchrun's own rendezvous. `stdout` is a file for the
        output of the ranks, None to inherit.
        """
        raise_open_files()  # torchrun holds a connection to every rank of every node, and its ranks inherit the limit
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                __name__,
                str(os.getpid()),
                json.dumps(None if nodes is None else asdict(nodes)),
                *args,
            ],
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
    """Become a reaper; in its child, run torchrun."""
    launcher, nodes = int(sys.argv[1]), json.loads(sys.argv[2])
    end_with_parent(parent=launcher)
    become_reaper()
    if nodes is not None:
        from paceline.launching.elastic_agent import run_agent  # noqa: PLC0415 - the launcher never imports torch

        run_agent(NodePlan(**nodes), sys.argv[3:])
    from torch.distributed import run  # noqa: PLC0415

    run.main(sys.argv[3:])


if __name__ == "__main__":
    main()
