"""Which processes start ranks, how many and where, under every launcher."""

import pytest

import paceline
from paceline import cli
from paceline.core.config import Config
from paceline.core.errors import ConfigError
from paceline.core.start import Start
from paceline.core.world import World
from paceline.launching.launch_plan import LaunchPlan, plan_launch
from paceline.parallel.detect import detect_world
from tests.conftest import make_small_config
from tests.parallel.launcher_variables import OPEN_MPI, SRUN, TORCHRUN

ON_CPU = Config(device="cpu")
ONE_PER_NODE = OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "MASTER_PORT": "4242"}
BARE = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "4242"}
LONE_TASKS = {
    "mpirun": {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
    "Flux": {"FLUX_TASK_RANK": "0", "FLUX_JOB_SIZE": "1"},
    "Slurm": SRUN | {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_NNODES": "1", "SLURM_STEP_TASKS_PER_NODE": "1"},
    "environment": {"RANK": "0", "WORLD_SIZE": "1"},
    "torchrun": TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"},
}


def plan_for(environ: dict[str, str], start: Start) -> LaunchPlan | None:
    return plan_launch(ON_CPU, start, detect_world(environ, start), environ)


@pytest.mark.parametrize("environ", LONE_TASKS.values(), ids=LONE_TASKS)
def test_the_only_task_of_a_launcher_trains_alone_unless_it_is_asked_for_more(environ):
    assert plan_for(environ, Start()) is None
    plan = plan_for(environ, Start(nproc=2))
    assert plan is not None
    assert (plan.nproc, plan.nnodes, plan.rendezvous) == (2, "1", None)
    plan = plan_for(environ, Start(nnodes="2", node_rank=1, rendezvous="node0:1"))
    assert plan is not None
    assert (plan.nproc, plan.nnodes, plan.node_rank, plan.rendezvous) == (1, "2", 1, "node0:1")


def test_one_process_per_node_starts_the_ranks_of_its_node():
    assert plan_for(ONE_PER_NODE, Start()) is None
    plan = plan_for(ONE_PER_NODE, Start(nproc=2))
    assert plan is not None
    assert (plan.nproc, plan.nnodes, plan.node_rank, plan.rendezvous) == (2, "4", 3, "node1:4242")
    tasks = SRUN | {"SLURM_PROCID": "2", "SLURM_NTASKS": "3", "SLURM_STEP_TASKS_PER_NODE": "1(x3)"}
    plan = plan_for(tasks, Start(nproc=2))
    assert plan is not None
    assert (plan.nproc, plan.nnodes, plan.node_rank) == (2, "3", 2)
    assert str(plan.rendezvous).startswith("gpu03:")


@pytest.mark.parametrize("environ", [OPEN_MPI, SRUN], ids=["mpirun", "Slurm"])
def test_several_processes_per_node_start_no_ranks(environ):
    assert plan_for(environ, Start()) is None
    with pytest.raises(ConfigError, match=r"--nproc starts ranks in every process, but .* runs several") as caught:
        plan_for(environ, Start(nproc=2))
    assert "drop --nproc" in str(caught.value.hint)


@pytest.mark.parametrize(
    "environ", [OPEN_MPI, ONE_PER_NODE, SRUN, BARE], ids=["mpirun", "one per node", "Slurm", "bare"]
)
def test_flags_about_nodes_win_over_a_launcher(environ):
    start = Start(nnodes="2", node_rank=1, rendezvous="node0:1")
    plan = plan_for({name: value for name, value in environ.items() if name != "MASTER_ADDR"}, start)
    assert plan is not None
    assert (plan.nproc, plan.nnodes, plan.node_rank, plan.rendezvous) == (1, "2", 1, "node0:1")


def test_all_tasks_are_refused_where_one_node_has_more_of_them_than_another():
    uneven = SRUN | {"SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_NTASKS": "3", "SLURM_NNODES": "2"}
    with pytest.raises(ConfigError, match="Slurm runs several processes per node"):
        plan_for(uneven | {"SLURM_STEP_TASKS_PER_NODE": "1,2"}, Start(nproc=2))


def test_a_rank_of_torchrun_starts_no_ranks():
    assert plan_for(TORCHRUN, Start(nproc=2)) is None


@pytest.mark.parametrize("command", ["verify", "bench"])
def test_a_rank_does_not_verify_or_bench(command, monkeypatch, elsewhere, capsys):
    for name, value in OPEN_MPI.items():
        monkeypatch.setenv(name, value)
    assert cli.run([command], {}) == 2
    assert (
        f"{command} starts its own ranks, but mpirun makes this process one of several ranks" in capsys.readouterr().err
    )


def test_a_rank_does_not_launch_others(monkeypatch, tmp_path):
    for name, value in OPEN_MPI.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        ConfigError, match="launch starts its own ranks, but mpirun makes this process one of several ranks"
    ):
        paceline.launch(make_small_config(tmp_path), nproc=2)


def test_one_node_may_be_given_like_several():
    assert plan_launch(Config(), Start(nnodes="1", node_rank=0, rendezvous="a:1"), World(), {}) is None


def test_more_ranks_than_gpus_are_refused():
    environ = {"CUDA_VISIBLE_DEVICES": "0,1"}
    with pytest.raises(ConfigError, match="--nproc 3 is more than the 2 GPUs of this machine"):
        plan_launch(Config(), Start(nproc=3), World(), environ)
    plan = plan_launch(Config(), Start(), World(), environ)
    assert plan is not None
    assert plan.nproc == 2


def test_an_indexed_gpu_is_for_one_rank():
    with pytest.raises(ConfigError, match="--device cuda:1 is one GPU, but --nproc 2 needs one per rank"):
        plan_launch(Config(device="cuda:1"), Start(nproc=2), World(), {"CUDA_VISIBLE_DEVICES": "0,1"})
    assert plan_launch(Config(device="cuda:1"), Start(), World(), {"CUDA_VISIBLE_DEVICES": "0,1"}) is None
