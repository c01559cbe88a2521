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
AT_ONCE = 3
"""Scripts that run at the same time."""
QUIET = 5.0
"""Seconds without a line after which ranks that wait for each other hang."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def be_rank(job, rank, port):
    """Run the script as one rank, and never return."""
    from paceline_attach import callsite, journal, seams
    from paceline_attach.listener import listeners
    from paceline_audit.rank_end import Limits, put_exception

    callsite._known[__file__] = False  # this file is no part of the script
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


def start(job):
    port, pids = free_port(), set()
    for rank in range(2):
        pid = os.fork()
        if pid == 0:
            be_rank(job, rank, port)
        pids.add(pid)
    return pids


def is_over(job, pids, deadline):
    """Tell whether the ranks of a job have ended, or end them because they hang."""
    pids -= {pid for pid in pids if os.waitpid(pid, os.WNOHANG)[0]}
    if pids and time.monotonic() < deadline and not hangs(job["journals"]):
        return False
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return True


def run_jobs(jobs):
    """Run a few jobs at a time: some only wait for a hang to be certain."""
    running = []
    while jobs or running:
        if jobs and len(running) < AT_ONCE:
            job = jobs.pop(0)
            running.append((job, start(job), time.monotonic() + LONGEST))
        running = [each for each in running if not is_over(*each)]
        time.sleep(0.02)


if __name__ == "__main__":
    run_jobs(json.loads(sys.argv[1]))
