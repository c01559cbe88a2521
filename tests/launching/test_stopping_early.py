"""A signal while processes wait for each other ends them at once, with one sentence and its own exit code."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from lab.environment import child_environment
from tests.conftest import LONGEST
from tests.launching.conftest import SETTINGS, free_port, listens, no_rank_left

SLOW = pytest.mark.slow
RANK_1_NEVER_COMES = """
import os, signal
if os.environ.get("RANK") == "1":
    signal.pause()
"""


@pytest.fixture
def without_rank_1(elsewhere) -> dict[str, str]:
    """Return an environment in which rank 1 stops before it runs any code of ours."""
    folder = elsewhere / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(RANK_1_NEVER_COMES)
    environ = child_environment()
    return environ | {"PYTHONPATH": f"{folder}:{environ['PYTHONPATH']}"}


def catches_signals(pid: int) -> bool:
    """Tell whether a process has a handler for SIGUSR1, the last to get one: after its imports it has."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    mask = next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1]
    return bool(int(mask, 16) >> (signal.SIGUSR1 - 1) & 1)


def rank_0_in(folder: Path) -> int:
    """Return the process of rank 0 once it waits for the others, else 0."""
    for process in psutil.process_iter(["cmdline", "cwd"]):
        words = process.info["cmdline"] or []
        if process.info["cwd"] == str(folder) and "paceline" in words and "torch.distributed.run" not in words:
            environ = process.environ()
            if environ.get("RANK") == "0" and catches_signals(process.pid):
                return process.pid
    return 0


@pytest.mark.parametrize(
    ("kind", "rank", "number"),
    [
        ("tcp", 0, signal.SIGTERM),
        pytest.param("tcp", 1, signal.SIGINT, marks=SLOW),
        pytest.param("file", 0, signal.SIGUSR1, marks=SLOW),
        ("file", 1, signal.SIGTERM),
        pytest.param("env", 0, signal.SIGINT, marks=SLOW),
        pytest.param("env", 1, signal.SIGTERM, marks=SLOW),
    ],
)
def test_a_rank_started_by_hand_stops_waiting(start, elsewhere, wait_until, kind, rank, number):
    port = free_port()
    place = {"tcp": f"tcp://127.0.0.1:{port}", "file": f"file://{elsewhere}/meet", "env": "env://"}[kind]
    environ = child_environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    words = ["--rank", rank, "--world-size", 2, "--init-method", place]
    process = start("train", *SETTINGS, *words, env=environ)
    wait_until(lambda: catches_signals(process.pid), "the rank to wait")
    process.send_signal(number)
    output, errors = process.communicate(timeout=LONGEST)
    assert (process.returncode, output) == (128 + number, "")
    place = f"tcp://127.0.0.1:{port}" if kind == "env" else place
    assert errors.endswith(f"paceline: stopped while rank {rank} was waiting for 1 other rank at {place}\n")


SLOW_DATA = """
import os, sys, time, torch
from pathlib import Path
from torch.utils.data import TensorDataset
def part(number):
    return TensorDataset(torch.zeros(number, 1, 8, 8), torch.arange(number) % 10)

def data():
    rank = os.environ.get("RANK") or sys.argv[sys.argv.index("--rank") + 1]
    Path(f"building-{rank}").touch(exist_ok=False)
    while rank == "1" and not Path("enough").exists():
        time.sleep(0.1)
    return part(100), part(20)
"""


WHILE_BUILDING = {
    "paceline: stopped while building the data and the model\n",
    "paceline: stopped while rank 0 was waiting for other ranks to start\n",
    "paceline: stopped while rank 1 was waiting for other ranks to start\n",
}


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=SLOW), signal.SIGTERM])
def test_a_rank_stops_waiting_for_one_that_still_builds_its_data(start, elsewhere, wait_until, number):
    (elsewhere / "slow.py").write_text(SLOW_DATA)
    words = ["--data", "slow.py:data", "--world-size", 2, "--init-method", f"file://{elsewhere}/meet"]
    first, second = (start("train", *SETTINGS, *words, "--rank", rank) for rank in (0, 1))
    for rank in (0, 1):
        wait_until((elsewhere / f"building-{rank}").exists, f"rank {rank} to build its data")
    first.send_signal(number)
    _, errors = first.communicate(timeout=LONGEST)
    assert first.returncode == 128 + number
    assert errors in WHILE_BUILDING
    (elsewhere / "enough").touch()
    _, errors = second.communicate(timeout=LONGEST)
    assert second.returncode == 1
    assert errors.startswith("paceline: the connection to a rank"), errors
    assert not (elsewhere / "runs").exists()


@pytest.mark.slow
def test_the_notice_of_slurm_stops_ranks_that_build_and_restarts_none(start, elsewhere, wait_until):
    (elsewhere / "slow.py").write_text(SLOW_DATA)  # a rank that is restarted fails
    process = start("train", *SETTINGS, "--data", "slow.py:data", "--nproc", 2, "--max-restarts", 1)
    for rank in (0, 1):
        wait_until((elsewhere / f"building-{rank}").exists, f"rank {rank} to build its data")
    process.send_signal(signal.SIGUSR1)
    _, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 128 + signal.SIGUSR1, errors
    assert errors in WHILE_BUILDING
    assert not (elsewhere / "runs").exists()


@pytest.mark.parametrize(
    "words", [pytest.param(["--nproc", 2], marks=SLOW), ["--rank", 0, "--world-size", 1]], ids=["launcher", "alone"]
)
def test_a_signal_while_the_users_code_builds_ends_all_at_once(start, elsewhere, wait_until, words):
    (elsewhere / "slow.py").write_text(SLOW_DATA.replace('rank == "1" and', ""))
    process = start("train", *SETTINGS, "--data", "slow.py:data", *words)
    wait_until((elsewhere / "building-0").exists, "rank 0 to build its data")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 128 + signal.SIGTERM
    assert errors in WHILE_BUILDING
    assert not (elsewhere / "runs").exists()


@pytest.mark.parametrize(
    ("node", "number"),
    [(0, signal.SIGTERM), (1, signal.SIGINT), pytest.param(1, signal.SIGUSR1, marks=pytest.mark.long)],
)
def test_a_launcher_stops_waiting_for_another_node(start, elsewhere, wait_until, node, number):
    place = f"127.0.0.1:{free_port()}"
    process = start("train", *SETTINGS, "--nnodes", 2, "--node-rank", node, "--rendezvous", place)
    wait_until(lambda: catches_signals(process.pid), "the launcher to wait")
    if node == 0:
        wait_until(lambda: listens(int(place.rpartition(":")[2])), "torchrun to wait")
    process.send_signal(number)
    _, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 128 + number
    assert errors.endswith(f"paceline: stopped while node {node} was waiting for node {1 - node} at {place}\n")
    assert no_rank_left(elsewhere)


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=SLOW), signal.SIGTERM])
def test_a_launcher_reports_once_that_its_ranks_wait_for_a_missing_rank(
    start, elsewhere, wait_until, without_rank_1, number
):
    process = start("train", *SETTINGS, "--nproc", 2, env=without_rank_1)
    wait_until(lambda: rank_0_in(elsewhere), "rank 0 to wait")
    process.send_signal(number)
    _, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 128 + number
    assert errors.endswith("paceline: stopped while rank 0 was waiting for 1 other rank at torchrun's rendezvous\n")
    assert no_rank_left(elsewhere)


@pytest.mark.slow
def test_a_rank_of_torchrun_stops_waiting(elsewhere, wait_until, without_rank_1):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "paceline"]
    process = subprocess.Popen([*torchrun, "train", *SETTINGS], env=without_rank_1, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: rank_0_in(elsewhere), "rank 0 to wait")
    os.kill(rank_0_in(elsewhere), signal.SIGTERM)
    _, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 1
    assert errors.count("paceline: stopped while rank 0 was waiting for 1 other rank at torchrun's rendezvous\n") == 1
    assert "exitcode  : 143" in errors
    assert no_rank_left(elsewhere)


def test_a_slurm_notice_requeues_a_job_whose_ranks_still_wait(start, elsewhere, wait_until):
    tool = elsewhere / "scontrol"
    tool.write_text(f'#!/bin/sh\necho "$@" >> {elsewhere}/asked\n')
    tool.chmod(0o755)
    environ = child_environment(SLURM_JOB_ID="4711", PATH=f"{elsewhere}:{os.environ['PATH']}")
    place = f"file://{elsewhere}/meet"
    words = ["--rank", 0, "--world-size", 2, "--init-method", place]
    process = start("train", *SETTINGS, *words, env=environ)
    wait_until(lambda: catches_signals(process.pid), "the rank to wait")
    process.send_signal(signal.SIGUSR1)
    process.communicate(timeout=LONGEST)
    assert process.returncode == 128 + signal.SIGUSR1
    assert (elsewhere / "asked").read_text() == "requeue 4711\n"
