"""What users see when ranks die, hosts cannot be reached, ports are taken or settings differ."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from lab.hosts import wait_for
from lab.runs import ends, run_below
from paceline.records.reader import read_environments, run_state

QUICK = pytest.mark.quick
LISTEN = (
    "import socket, time; s = socket.create_server(('0.0.0.0', 29400)); print('ready', flush=True); time.sleep(100)"
)


def test_a_killed_rank_is_restarted_and_the_run_continues(train_on, tmp_path):
    words = ("--nnodes=2", "--rendezvous=10.77.0.1:29400", "--max-restarts=2", "--epochs=200", "--save-every=10 epochs")
    launchers = [train_on(node + 1, *words, "--node-rank", node) for node in range(2)]
    wait_for(lambda: list(tmp_path.glob("runs/*/*/checkpoints/step-*")), "a checkpoint")
    os.kill(pid_of_rank(tmp_path, 1), signal.SIGKILL)
    ends(*launchers)
    folder = run_below(tmp_path)
    assert run_state(folder) == "FINISHED"
    assert len(read_environments(folder)) == 2


@QUICK
def test_a_killed_rank_without_restarts_ends_all_with_its_name(train_on, tmp_path):
    words = ("--nnodes=2", "--rendezvous=10.77.0.1:29400", "--epochs=100000")
    launchers = [train_on(node + 1, *words, "--node-rank", node) for node in range(2)]
    wait_for(lambda: list(tmp_path.glob("runs/*/*/checkpoints/step-*")), "a checkpoint")
    os.kill(pid_of_rank(tmp_path, 1), signal.SIGKILL)
    (_, first), (_, second) = ends(*launchers, code=1)
    assert re.search(r"rank 1 on node2 \(process \d+\) was killed by SIGKILL", second)
    assert re.search(r"rank 1 on node2 \(process \d+\) died after step \d+ without reporting an error", first)


def test_a_rank_that_dies_on_one_node_before_there_is_a_run_is_looked_for_there(train_on, tmp_path):
    (tmp_path / "dies.py").write_text(
        "import os, torch\ndef data():\n    assert os.environ['RANK'] == '0', 'no such file on this node'\n"
        "    return torch.utils.data.TensorDataset(torch.rand(300, 1, 8, 8), torch.arange(300) % 2)\n"
    )
    words = ("--nnodes=2", "--rendezvous=10.77.0.1:29400", "--data=dies.py:data")
    (_, first), (_, second) = ends(*[train_on(node + 1, *words, "--node-rank", node) for node in range(2)], code=None)
    assert "no such file on this node" in second
    assert "the connection to a rank at 10.77.0.2 was lost" in first


def test_a_signal_to_one_rank_stops_all_and_all_say_so(train_on, tmp_path):
    words = ("--world-size=2", "--init-method=tcp://10.77.0.1:29500", "--epochs=100000")
    ranks = [train_on(rank + 1, *words, "--rank", rank) for rank in range(2)]
    wait_for(lambda: list(tmp_path.glob("runs/*/*/checkpoints/step-*")), "a checkpoint")
    ranks[1].send_signal(signal.SIGUSR1)
    ends(*ranks, code=128 + signal.SIGUSR1)
    assert run_state(run_below(tmp_path)) == "STOPPED"


def test_a_rank_that_hangs_is_named_by_the_others(train_on, tmp_path):
    words = ("--world-size=2", "--init-method=tcp://10.77.0.1:29500", "--epochs=100000", "--timeout=10")
    lead, other = (train_on(rank + 1, *words, "--rank", rank) for rank in range(2))
    wait_for(lambda: list(tmp_path.glob("runs/*/*/checkpoints/step-*")), "a checkpoint")
    other.send_signal(signal.SIGSTOP)
    ((_, err),) = ends(lead, code=1)
    assert "no answer within 10 s" in err
    assert "rank 1 silent since step" in err
    assert re.search(r"rank 0 waited in \w+ of .* numbers, number \d+", err)


@pytest.mark.parametrize("cut", [False, True], ids=["nobody there", "cable cut"])
def test_a_rendezvous_that_cannot_be_reached_is_named(hosts, train_on, cut):
    if cut:
        hosts.cut(2)
    try:
        words = ("--nnodes=2", "--node-rank=1", "--rendezvous=10.77.0.1:29400", "--timeout=3")
        ((_, err),) = ends(train_on(2, *words), code=1)
    finally:
        hosts.heal(2)
    assert "node 1 waited 3 s for node 0 at 10.77.0.1:29400" in err


def test_missing_ranks_are_named(train_on):
    words = ("--world-size=3", "--init-method=tcp://10.77.0.1:29500", "--timeout=8")
    (_, first), (_, second) = ends(*[train_on(rank + 1, *words, "--rank", rank) for rank in (0, 1)], code=1)
    assert "tcp://10.77.0.1:29500: waited 8 s for 3 ranks, but rank 2 did not connect" in first
    assert re.search(r"(rank 2 did not connect|missing: rank 2)", second), "whether or not rank 0 gave up before"


def test_a_missing_lead_is_named(train_on, tmp_path):
    ((_, tcp),) = ends(
        train_on(2, "--world-size=2", "--rank=1", "--init-method=tcp://10.77.0.1:29500", "--timeout=3"), code=1
    )
    assert "rank 1 could not reach rank 0 at 10.77.0.1:29500 within 3 s" in tcp
    ((_, file),) = ends(
        train_on(2, "--world-size=2", "--rank=1", f"--init-method=file://{tmp_path}/meet", "--timeout=3"), code=1
    )
    assert "rank 0 did not connect" in file


@pytest.mark.parametrize(
    "words",
    [
        ("--nnodes=2", "--node-rank=0", "--rendezvous=10.77.0.1:29400"),
        ("--rank=0", "--world-size=2", "--init-method=tcp://10.77.0.1:29400"),
    ],
    ids=["launcher", "by hand"],
)
def test_a_port_that_is_taken_is_named(on, train_on, words):
    owner = on(1, sys.executable, "-c", LISTEN)
    assert owner.stdout.readline() == "ready\n"
    ((_, err),) = ends(train_on(1, *words, "--timeout=10"), code=1)
    assert "port 29400 on node1 is taken" in err


def test_a_second_host_with_node_rank_0_is_reported(train_on):
    words = ("--nnodes=2", "--node-rank=0", "--rendezvous=10.77.0.1:29400", "--timeout=15")
    answers = ends(*[train_on(host, *words) for host in (1, 2)], code=1)
    assert any("10.77.0.1:29400: another process is node 0 too" in err for _, err in answers)


def test_ranks_with_different_settings_are_refused(train_on, tmp_path):
    words = ("--world-size=2", "--init-method=tcp://10.77.0.1:29500")
    answers = ends(*[train_on(rank + 1, *words, "--rank", rank, f"--seed={rank}") for rank in range(2)], code=2)
    for _, err in answers:
        assert "the ranks do not agree: --seed is 0 on rank 0 and 1 on rank 1" in err
    assert not list(tmp_path.glob("runs/*/*")), "no run was begun"


def test_ranks_that_count_differently_are_refused(train_on):
    place = "--init-method=tcp://10.77.0.1:29500"
    ranks = [train_on(rank + 1, place, "--timeout=10", "--rank", rank, f"--world-size={rank + 2}") for rank in range(2)]
    (_, first), (_, second) = ends(*ranks, code=1)
    assert "rank 1 expects 3 ranks, rank 0 expects 2" in first
    assert re.search(r"rank 0 (expects 2 ranks, rank 1 expects 3|exited before)", second)


def pid_of_rank(folder: Path, rank: int) -> int:
    (text,) = [path.read_text() for path in folder.glob(f"runs/*/*/ranks/rank-{rank:03d}.json")]
    match = re.search(r'"pid": (\d+)', text)
    assert match is not None
    return int(match[1])


def test_the_lab_has_no_route_to_the_outside(hosts):
    probe = "import socket; socket.create_connection(('192.0.2.1', 9), timeout=3)"
    assert "unreachable" in hosts.run(1, sys.executable, "-c", probe).stderr
