"""One simulated rank that runs many commands in one process: `python -m tests.sim.worker COMMANDS.json RANK`.

Each command runs with as many ranks as it asks for; the other workers skip it. The results of this rank are written to
result-RANK.json beside the commands.
"""

import contextlib
import io
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.sim.entries import LOG
from tests.sim.names import BARE
from tests.sim.renaming import rename_cuda, simulated_argv

SECONDS = 240


def run_command(command: dict[str, Any], rank: int, folder: Path) -> dict[str, Any]:
    """Run one command as one of its ranks; return exit code, output and entries."""
    from paceline.cli import run
    from tests.sim.bare_loop import bare_loop

    argv = simulated_argv(command["argv"])
    if command["world"] > 1:
        place = f"file://{folder / command['name']}.rendezvous"
        argv += ["--rank", str(rank), "--world-size", str(command["world"]), "--local-rank", str(rank)]
        argv += ["--init-method", place, "--timeout", "120"]
    elif command["argv"][0] == "train":
        argv += ["--nproc", "1"]  # not one rank per visible device
    output = io.StringIO()
    environ = {name: value.format(rank=rank) for name, value in command["environ"].items()}
    with _environment(environ), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            code = bare_loop(argv[1]) or 0 if argv[0] == BARE else run(argv, os.environ)
        except Exception:  # noqa: BLE001 - a failure of one command is a result, and the next one runs all the same
            traceback.print_exc()
            code = 1
    _leave_ranks()
    return {"code": int(code), "output": output.getvalue()} | LOG.take()


@contextlib.contextmanager
def _environment(changes: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _leave_ranks() -> None:
    """Leave a process group that a failed command has not left."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def wait_for_rank_0(command: dict[str, Any], rank: int, folder: Path) -> None:
    """Let all ranks start a command together: the others have run fewer commands before it, and would time out."""
    signal = folder / f"{command['name']}.started"
    if rank == 0:
        signal.touch()
    deadline = time.monotonic() + SECONDS
    while not signal.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank 0 did not start {command['name']} within {SECONDS} s")
        time.sleep(0.05)


def main() -> None:
    path, rank = Path(sys.argv[1]), int(sys.argv[2])
    rename_cuda()
    results = {}
    for command in json.loads(path.read_text(encoding="utf-8")):
        if rank < command["world"]:
            wait_for_rank_0(command, rank, path.parent)
            results[command["name"]] = run_command(command, rank, path.parent)
    (path.parent / f"result-{rank}.json").write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main()
