"""Launchers that start one process per node: it starts the ranks of the node, and never trains alone by mistake."""

import pytest

import paceline
from paceline.core.config import Config
from paceline.core.errors import ConfigError
from paceline.core.start import Start
from paceline.launching.launch_plan import plan_launch
from paceline.parallel.detect import detect_world
from paceline.parallel.nodes import join_nodes
from paceline.parallel.ports import DERIVED_PORTS
from tests.conftest import make_small_config
from tests.parallel.launcher_variables import OPEN_MPI, SRUN, TORCHRUN

KUBEFLOW = {
    "PET_NNODES": "2", "PET_NPROC_PER_NODE": "auto", "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "job-node-0-0.job", "PET_MASTER_PORT": "29400",
}  # fmt: skip
SKYPILOT = {
    "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5",
    "SKYPILOT_NUM_GPUS_PER_NODE": "0", "SKYPILOT_TASK_ID": "sky-1-2-3_cluster_job-4",
}  # fmt: skip
PYTORCHJOB = KUBEFLOW | {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456",
                         "PET_NPROC_PER_NODE": "2"}  # fmt: skip


def nodes(start: Start) -> tuple:
    return (start.nnodes, start.node_rank, start.nproc, start.rendezvous)


def test_kubeflow_names_the_nodes():
    assert nodes(join_nodes(Start(), KUBEFLOW)) == ("2", 1, None, "job-node-0-0.job:29400")
    assert nodes(join_nodes(Start(nproc=3), KUBEFLOW)) == ("2", 1, 3, "job-node-0-0.job:29400")
    four = KUBEFLOW | {"PET_NPROC_PER_NODE": "4"}
    assert join_nodes(Start(), four).nproc == 4
    assert join_nodes(Start(nproc=3), four).nproc == 3


def test_an_elastic_job_of_kubeflow_keeps_its_range():
    elastic = {"PET_NNODES": "1:4", "PET_RDZV_ENDPOINT": "job-worker-0:23456", "PET_RDZV_BACKEND": "c10d"}
    assert nodes(join_nodes(Start(), elastic)) == ("1:4", None, None, "job-worker-0:23456")


def test_a_pytorchjob_with_several_ranks_per_pod_counts_pods():
    assert nodes(join_nodes(Start(), PYTORCHJOB)) == ("2", 1, 2, "job-node-0-0.job:29400")
    assert detect_world(PYTORCHJOB, join_nodes(Start(), PYTORCHJOB)).launcher == "none"


def test_skypilot_names_the_nodes():
    start = join_nodes(Start(), SKYPILOT)
    host, _, port = str(start.rendezvous).partition(":")
    assert (start.nnodes, start.node_rank, start.nproc, host) == ("2", 1, None, "10.0.0.4")
    assert int(port) in DERIVED_PORTS
    assert join_nodes(Start(), SKYPILOT | {"SKYPILOT_NODE_RANK": "0"}).rendezvous == start.rendezvous
    assert join_nodes(Start(), SKYPILOT | {"MASTER_PORT": "8008"}).rendezvous == "10.0.0.4:8008"


@pytest.mark.parametrize("environ", [KUBEFLOW, SKYPILOT], ids=["Kubeflow", "SkyPilot"])
def test_one_rank_per_node_is_launched(environ):
    start = join_nodes(Start(), environ)
    plan = plan_launch(Config(device="cpu"), start, detect_world(environ, start), environ)
    assert plan is not None
    assert (plan.nproc, plan.nnodes, plan.node_rank, plan.rendezvous) == (1, "2", 1, start.rendezvous)


@pytest.mark.parametrize("environ", [KUBEFLOW, SKYPILOT], ids=["Kubeflow", "SkyPilot"])
@pytest.mark.parametrize("mode", ["single", "dp"])
def test_a_mode_of_one_process_is_refused_on_several_nodes(environ, mode):
    start = join_nodes(Start(), environ)
    with pytest.raises(ConfigError, match=f"--mode {mode} is one process, but there are 2 nodes") as caught:
        plan_launch(Config(mode=mode), start, detect_world(environ, start), environ)
    assert "--rank 0 --world-size 1" in str(caught.value.hint)


@pytest.mark.parametrize(
    "start",
    [
        Start(rank=0, world_size=1),
        Start(nnodes="3", node_rank=2, rendezvous="a:1"),
        Start(rank=1, world_size=2, init_method="tcp://a:1"),
    ],
)
@pytest.mark.parametrize("environ", [KUBEFLOW, SKYPILOT], ids=["Kubeflow", "SkyPilot"])
def test_flags_win(environ, start):
    assert join_nodes(start, environ) == start
    assert detect_world(environ, start).size == (start.world_size or 1)


@pytest.mark.parametrize("launcher", [TORCHRUN, SRUN, OPEN_MPI], ids=["torchrun", "Slurm", "mpirun"])
@pytest.mark.parametrize("environ", [KUBEFLOW, SKYPILOT], ids=["Kubeflow", "SkyPilot"])
def test_a_process_that_is_a_rank_already_starts_none(environ, launcher):
    assert join_nodes(Start(), environ | launcher) == Start()
    assert detect_world(environ | launcher, Start()).size > 1


@pytest.mark.parametrize(
    "environ",
    [
        {"PET_NNODES": "1", "PET_NODE_RANK": "0", "PET_NPROC_PER_NODE": "auto", "PET_MASTER_ADDR": "job-node-0-0.job"},
        {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "1"},
        {"PET_LOG_DIR": "/tmp"},
        {"SKYPILOT_NUM_NODES": "1", "SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.0.4"},
        {"SKYPILOT_SETUP_NODE_RANK": "1", "SKYPILOT_SETUP_NUM_GPUS_PER_NODE": "0"},
    ],
)
def test_one_node_trains_alone(environ):
    start = join_nodes(Start(), environ)
    assert plan_launch(Config(device="cpu"), start, detect_world(environ, start), environ) is None


def test_the_ranks_of_one_node_of_kubeflow_are_started():
    environ = {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "2"}
    start = join_nodes(Start(), environ)
    plan = plan_launch(Config(device="cpu"), start, detect_world(environ, start), environ)
    assert plan is not None
    assert (plan.nproc, plan.rendezvous) == (2, None)


def test_the_restarts_that_kubeflow_allows_are_kept():
    assert join_nodes(Start(), KUBEFLOW | {"PET_MAX_RESTARTS": "3"}).max_restarts == 3
    assert join_nodes(Start(max_restarts=0), KUBEFLOW | {"PET_MAX_RESTARTS": "3"}).max_restarts == 0


@pytest.mark.parametrize("environ", [{"PET_NNODES": "2"}, {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1"}])
def test_nodes_without_an_address_are_refused_with_the_flags_to_add(environ):
    with pytest.raises(ConfigError, match=r"NODES is 2, but \w+ has no address at which the nodes connect") as caught:
        join_nodes(Start(), environ)
    assert "--nnodes 2 --node-rank N --rendezvous HOST:PORT" in str(caught.value.hint)


@pytest.mark.parametrize("environ", [KUBEFLOW, SKYPILOT], ids=["Kubeflow", "SkyPilot"])
def test_training_in_this_process_is_refused_on_one_of_several_nodes(environ, monkeypatch, tmp_path):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"on 2 nodes .*, but here it would train alone") as caught:
        paceline.train(make_small_config(tmp_path))
    assert "paceline.launch" in str(caught.value.hint)
    assert not list(tmp_path.iterdir())


def test_the_index_of_a_kubernetes_job_is_the_node_rank():
    pod = {"JOB_COMPLETION_INDEX": "1"}
    two = Start(nnodes="2", rendezvous="train-0.train:29400")
    assert join_nodes(two, pod).node_rank == 1
    assert join_nodes(two, {}).node_rank is None
    assert join_nodes(Start(nnodes="2", node_rank=0, rendezvous="a:1"), pod).node_rank == 0, "the flag wins"
    assert join_nodes(Start(), pod) == Start(), "pods of a sweep train alone"
