"""Every way to start ranks on several hosts ends with the result of one process."""

import itertools
import shutil
import signal
import sys

import pytest

from lab.hosts import wait_for
from lab.runs import PACELINE, ends, is_like, run_below, train

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
QUICK = pytest.mark.quick


@pytest.mark.parametrize("number", [2, 3])
def test_torchrun_connects_over_c10d(on, alone, tmp_path, number):
    meet = (f"--nnodes={number}", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-endpoint=node1:29400")
    words = (*TORCHRUN, *meet, "--rdzv-id=lab", "-m", "paceline", *train())
    ends(*[on(host, *words) for host in range(1, number + 1)])
    is_like(alone, run_below(tmp_path))


@pytest.mark.parametrize("number", [pytest.param(2, marks=QUICK), 3])
def test_own_launchers_connect_at_node_0(train_on, alone, tmp_path, number):
    words = ("--nnodes", number, "--rendezvous=10.77.0.1:29400")
    ends(*[train_on(node + 1, *words, "--node-rank", node) for node in reversed(range(number))])
    is_like(alone, run_below(tmp_path))


def test_own_launchers_start_several_ranks_each(train_on, alone, tmp_path):
    words = ("--nnodes=2", "--nproc=2", "--rendezvous=node1:29400")
    ends(*[train_on(node + 1, *words, "--node-rank", node) for node in range(2)])
    folder = run_below(tmp_path)
    is_like(alone, folder)
    assert len(list(folder.path.glob("ranks/rank-*.json"))) == 4


def test_elastic_launchers_start_with_the_nodes_there_are(train_on, alone, tmp_path):
    words = ("--nnodes=1:2", "--rendezvous=10.77.0.1:29400")
    ends(*[train_on(host, *words) for host in (1, 2)])
    is_like(alone, run_below(tmp_path))


def test_an_elastic_launcher_does_not_wait_for_a_second_node_for_ever(train_on, alone, tmp_path):
    ends(train_on(1, "--nnodes=1:2", "--rendezvous=10.77.0.1:29400"))
    is_like(alone, run_below(tmp_path))


@pytest.mark.parametrize("number", [2, 3])
def test_ranks_started_by_hand_connect_over_tcp(train_on, alone, tmp_path, number):
    words = ("--world-size", number, "--init-method=tcp://node1:29500")
    ends(*[train_on(rank + 1, *words, "--rank", rank) for rank in range(number)])
    is_like(alone, run_below(tmp_path))


def test_ranks_started_by_hand_connect_by_environment_variables(train_on, alone, tmp_path):
    place = {"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29500"}
    ends(*[train_on(rank + 1, "--world-size=2", "--rank", rank, **place) for rank in range(2)])
    is_like(alone, run_below(tmp_path))


def test_ranks_started_with_variables_alone_connect(train_on, alone, tmp_path):
    place = {"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "2"}
    ends(*[train_on(rank + 1, RANK=str(rank), **place) for rank in range(2)])
    is_like(alone, run_below(tmp_path))


def test_ranks_started_by_hand_connect_through_a_file(train_on, alone, tmp_path):
    words = ("--world-size=3", f"--init-method=file://{tmp_path}/meet")
    ends(*[train_on(rank + 1, *words, "--rank", rank) for rank in range(3)])
    is_like(alone, run_below(tmp_path))
    assert not list(tmp_path.glob("meet*")), "the rendezvous files are removed"


ORDERS = list(itertools.permutations(range(3)))


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_a_rendezvous_file_left_by_killed_ranks_is_harmless_in_any_order_of_arrival(train_on, alone, tmp_path, order):
    words = ("--world-size=3", f"--init-method=file://{tmp_path}/meet")
    killed = [train_on(rank + 1, *words, "--rank", rank, "--epochs=100000") for rank in range(3)]
    wait_for(lambda: list(tmp_path.glob("runs/*/*/metrics.jsonl")), "the first attempt to train")
    for process in killed:
        process.send_signal(signal.SIGKILL)
    ends(*killed, code=-signal.SIGKILL)
    assert list(tmp_path.glob("meet*")), "the first attempt has left its meeting behind"
    shutil.rmtree(tmp_path / "runs")
    started = []
    for rank in order:
        started.append(train_on(rank + 1, *words, "--rank", rank))
        wait_for(lambda process=started[-1]: has_imported_torch(process.pid), "a head start")
    ends(*started)
    is_like(alone, run_below(tmp_path))


def has_imported_torch(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/maps") as maps:  # noqa: PTH123 - not a file of ours
            return "libtorch" in maps.read()
    except OSError:
        return True


def test_mpirun_starts_ranks_on_one_host(on, alone, tmp_path):
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed (make lab installs it)")
    mpirun = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2")
    ends(on(1, *mpirun, *PACELINE, *train()))
    is_like(alone, run_below(tmp_path))


def test_a_slow_link_slows_training_and_changes_nothing(hosts, train_on, alone, tmp_path):
    hosts.limit(2, "50mbit")
    try:
        words = ("--world-size=2", "--init-method=tcp://10.77.0.1:29500")
        ends(*[train_on(rank + 1, *words, "--rank", rank) for rank in range(2)])
    finally:
        hosts.unlimit(2)
    is_like(alone, run_below(tmp_path))
