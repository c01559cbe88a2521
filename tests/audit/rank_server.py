"""Runs many scripts on two ranks each, audited, in processes that fork from one that has imported torch."""

import json
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

import torch  # imported once for all ranks, with the evidence attached to it

traced = sys.gettrace()
sys.settrace(None)  # these imports are slow when traced
import torch._dynamo  # noqa: E402 - optimizers import it when they are first used
import torch.utils.tensorboard  # noqa: E402, F401

sys.settrace(traced)

LONGEST = 100.0
QUIET = 5.0
"""Seconds without a line after which ranks that wait for each other hang."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def be_rank(job, rank, port):
    """Run the script as one rank, and never return."""
    from paceline_attach import journal, seams
    from paceline_attach.listener import listeners
    from paceline_audit.rank_end import Limits, put_exception

    os.chdir(job["folder"])
    journal.FOLDER = job["journals"]
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    for listener in listeners:
        if isinstance(listener, Limits):
            listener.__init__()  # the address above is not the script's
    output = os.open(f"output-{rank}.txt", os.O_CREAT | os.O_WRONLY, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    try:
        runpy.run_path(job["script"], run_name="__main__")
    except SystemExit:
        pass
    except BaseException as problem:  # noqa: BLE001 - whatever the script does
        traceback.print_exc()
        put_exception(problem, problem.__traceback__)
    seams.tell_exit()
    sys.stdout.flush()
    os._exit(0)


def hangs(folder):
    """Tell whether a rank waits for others, and no rank has written anything for a while."""
    journals = list(Path(folder).iterdir())
    if not journals or time.time() - max(path.stat().st_mtime for path in journals) < QUIET:
        return False
    return any('"kind": "stuck"' in path.read_text() for path in journals)


def run_job(job):
    port, pids = free_port(), []
    for rank in range(2):
        pid = os.fork()
        if pid == 0:
            be_rank(job, rank, port)
        pids.append(pid)
    deadline, left = time.monotonic() + LONGEST, set(pids)
    while left and time.monotonic() < deadline and not hangs(job["journals"]):
        left -= {pid for pid in left if os.waitpid(pid, os.WNOHANG)[0]}
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    for each in json.loads(sys.argv[1]):
        run_job(each)
