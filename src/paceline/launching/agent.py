"""torchrun as a process of ours: it imports torch while the launcher still reads its settings.

The new process runs this module too, and the command line imports it before anything else: what it imports is light.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paceline.core.limits import raise_open_files

PR_SET_PDEATHSIG = 1
FLAGS = ("--nproc", "--nnodes")


class Agent:
    """A process that waits for its words and then is torchrun with them."""

    def __init__(self, *, stdout: int | None = None) -> None:
        """Start it; `stdout` is a file for what its ranks print, None for the one they inherit."""
        raise_open_files()  # torchrun holds a connection to every rank of every node, and its ranks inherit the limit
        reading, self._words = os.pipe()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(reading)],
                env={"TORCH_CPP_LOG_LEVEL": "ERROR", **os.environ},
                stdout=stdout,
                stderr=self._log,
                pass_fds=[reading],
                start_new_session=True,  # Ctrl-C reaches the launcher alone, which passes it on once
            )
        except OSError:
            os.close(self._words)
            self._log.close()
            raise
        finally:
            os.close(reading)

    def begin(self, words: Sequence[str], environ: Mapping[str, str], nodes: Mapping[str, Any] | None = None) -> None:
        """Become torchrun with these arguments and only these variables, once all these nodes are there."""
        with contextlib.suppress(BrokenPipeError), os.fdopen(self._words, "w", encoding="utf-8") as pipe:
            json.dump({"words": list(words), "environ": dict(environ), "nodes": nodes}, pipe)

    def said(self) -> str:
        """Return what torchrun has said, warnings and the story of a failure."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def dismiss(self) -> None:
        """End it before it has begun."""
        os.close(self._words)
        self.process.kill()
        self.process.wait()
        self._log.close()


_ahead: list[Agent] = []


@contextlib.contextmanager
def started_ahead(words: Sequence[str], environ: Mapping[str, str]) -> Iterator[None]:
    """Start the agent of a command that looks as if it will start ranks; one that was not needed ends with it."""
    if "train" in words[:1] and any(word.startswith(FLAGS) for word in words) and "RANK" not in environ:
        with contextlib.suppress(OSError):  # too few open files: the command says so once it knows the world size
            _ahead.append(Agent())
    try:
        yield
    finally:
        dismiss_ahead()


def agent_for(stdout: int | None) -> Agent:
    """Return the agent that was started ahead, or a new one."""
    return _ahead.pop() if _ahead and stdout is None else Agent(stdout=stdout)


def dismiss_ahead() -> None:
    """End the agent that was started ahead: this process has turned out to be the one that trains."""
    while _ahead:
        _ahead.pop().dismiss()


def stop_with_parent() -> None:
    """Ask the kernel to stop this process in good order when its parent goes, however it goes."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def main() -> None:
    """Be the agent: the words come through the pipe; no words, no ranks."""
    stop_with_parent()
    from torch.distributed import run  # noqa: PLC0415 - the launcher reads its settings meanwhile

    with os.fdopen(int(sys.argv[1]), encoding="utf-8") as pipe:
        order = pipe.read()
    if order:
        told = json.loads(order)
        os.environ.clear()
        os.environ.update(told["environ"])
        store = None if told["nodes"] is None else _connect_nodes(told["nodes"])
        run.main(told["words"])
        del store  # not earlier: torchrun used its server


def _connect_nodes(nodes: dict[str, Any]) -> object:
    """Return the store of all launchers once they are there; on failure, leave a report for our own and exit."""
    from paceline.core.errors import RanksError  # noqa: PLC0415 - see above: this module is imported first
    from paceline.parallel.meeting import open_node_store  # noqa: PLC0415
    from paceline.records.reports import report_failure  # noqa: PLC0415

    try:
        return open_node_store(**nodes)
    except RanksError as problem:
        report_failure(problem, os.environ)
        sys.exit(problem.exit_code)


if __name__ == "__main__":
    main()
