"""Launchers that start every rank: each is recognised, and an unknown launcher is an error."""

import pytest

from paceline.core.errors import ConfigError
from paceline.core.start import Start
from paceline.core.world import World
from paceline.parallel.detect import detect_world
from paceline.parallel.launchers import LAUNCHERS
from tests.parallel.launcher_variables import SRUN

NOTHING_SAID = Start()

JSRUN = {
    "JSM_NAMESPACE_RANK": "3", "JSM_NAMESPACE_SIZE": "4", "JSM_NAMESPACE_LOCAL_RANK": "1",
    "JSM_NAMESPACE_LOCAL_SIZE": "2", "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_RANK": "3", "LSB_JOBID": "7",
}  # fmt: skip
MVAPICH2 = {
    "MV2_COMM_WORLD_RANK": "3", "MV2_COMM_WORLD_SIZE": "4", "MV2_COMM_WORLD_LOCAL_RANK": "1",
    "MV2_COMM_WORLD_LOCAL_SIZE": "2", "PMI_PORT": "n1:4242",
}  # fmt: skip
MVAPICH = {name.replace("MV2_", "MVP_"): value for name, value in MVAPICH2.items()}
FLUX = {
    "FLUX_TASK_RANK": "3", "FLUX_JOB_SIZE": "4", "FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_NNODES": "2",
    "FLUX_JOB_ID": "ƒabc", "FLUX_URI": "local:///run/flux/local", "PMI_RANK": "3", "PMI_SIZE": "4", "PMI_FD": "9",
}  # fmt: skip
PALS = {
    "PALS_RANKID": "3", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "2", "PALS_NODEID": "1", "PALS_APID": "a-b",
    "PMI_RANK": "3", "PMI_SIZE": "4", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "2", "PBS_JOBID": "9.pbs",
}  # fmt: skip
CRAY_PMI = {"PMI_RANK": "3", "PMI_SIZE": "4", "PMI_LOCAL_RANK": "1", "PMI_LOCAL_SIZE": "2"}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "PMI_FD": "8"}
ALL = {
    "jsrun": JSRUN, "MVAPICH2": MVAPICH2, "MVAPICH": MVAPICH, "Flux": FLUX, "PALS": PALS, "mpirun by Cray": CRAY_PMI,
    "mpirun by Hydra": HYDRA,
}  # fmt: skip
SIZES = ("SIZE", "LOCAL_SIZE", "NNODES", "LOCALNRANKS")


def facts(world: World) -> tuple:
    return (world.rank, world.size, world.local_rank, world.local_size, world.launcher)


def one_task(environ: dict[str, str]) -> dict[str, str]:
    """Return what the launcher sets for the only task of a job."""
    alone = {name: "1" for name in environ if name.endswith(SIZES)}
    ranks = {name: "0" for name in environ if name.endswith(("RANK", "RANKID", "LOCAL_ID"))}
    return environ | ranks | alone


@pytest.mark.parametrize("environ", ALL.values(), ids=ALL)
def test_rank_and_size_are_those_of_the_launcher(environ, request):
    name = request.node.callspec.id.partition(" ")[0].removesuffix("2")
    world = detect_world(environ | {"MASTER_ADDR": "node0"}, NOTHING_SAID)
    assert facts(world) == (3, 4, 1, 2, name)
    assert world.init_method.startswith("tcp://node0:")


@pytest.mark.parametrize("environ", ALL.values(), ids=ALL)
def test_ranks_on_several_hosts_ask_for_an_address(environ):
    with pytest.raises(ConfigError, match="started ranks on several hosts, but MASTER_ADDR is not set") as caught:
        detect_world(environ, NOTHING_SAID)
    assert "set MASTER_ADDR" in str(caught.value.hint)


@pytest.mark.parametrize("environ", ALL.values(), ids=ALL)
def test_the_only_task_of_a_launcher_trains_alone(environ):
    assert facts(detect_world(one_task(environ), NOTHING_SAID))[:4] == (0, 1, 0, 1)


@pytest.mark.parametrize(
    ("environ", "rank", "job"), [(FLUX, "FLUX_TASK_RANK", "FLUX_JOB_ID"), (JSRUN, "JSM_NAMESPACE_RANK", "LSB_JOBID")]
)
def test_all_ranks_of_a_launch_compute_the_same_port_and_other_launches_another(environ, rank, job):
    def place(**more: str) -> str:
        return detect_world(environ | {"MASTER_ADDR": "node0"} | more, NOTHING_SAID).init_method

    assert place() == place(**{rank: "0"})
    assert place() != place(**{job: "another"})


@pytest.mark.parametrize("environ", [PALS, CRAY_PMI], ids=["PALS", "Cray PMI"])
def test_slurm_is_believed_where_it_sets_the_variables_of_others(environ):
    assert detect_world(SRUN | environ, NOTHING_SAID).launcher == "Slurm"


def test_mpirun_in_a_slurm_job_is_believed_although_slurm_started_its_helpers():
    world = detect_world(SRUN | HYDRA | {"MASTER_ADDR": "node0"}, NOTHING_SAID)
    assert facts(world) == (3, 4, 1, 2, "mpirun")


def test_a_launcher_that_does_not_say_how_many_ranks_there_are_is_refused():
    without_size = {name: value for name, value in PALS.items() if not name.startswith("PMI_")}
    with pytest.raises(ConfigError, match="PMI_SIZE is not set") as caught:
        detect_world(without_size | {"PMIX_RANK": "3"}, NOTHING_SAID)
    assert "--rank R --world-size N" in str(caught.value.hint)
    assert "--rank 0 --world-size 1 to train alone" in str(caught.value.hint)


TRACES = [
    {"PMIX_RANK": "0"},
    {"PMIX_RANK": "1", "PMIX_NAMESPACE": "prterun-n1-42@1"},
    {"ALPS_APP_PE": "3"},
    {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"},
    {"RANK": "1"},
    {"LOCAL_RANK": "2"},
    {"NODE_RANK": "1", "MASTER_ADDR": "node0"},
    {"JOB_COMPLETION_INDEX": "0", "MASTER_ADDR": "train-0.train"},
    {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_USE_CPU": "True", "MASTER_ADDR": "127.0.0.1"},
    *({launcher.size: "2"} for launcher in LAUNCHERS),
]


@pytest.mark.parametrize("environ", TRACES, ids=[next(iter(environ)) for environ in TRACES])
def test_a_trace_of_a_launcher_that_is_not_understood_is_refused_unless_flags_say_more(environ):
    with pytest.raises(ConfigError, match="suggests that this is one of several ranks") as caught:
        detect_world(environ, NOTHING_SAID)
    assert "--rank 0 --world-size 1 to train alone" in str(caught.value.hint)
    assert detect_world(environ, Start(rank=0, world_size=1)).size == 1
    assert detect_world(environ, Start(rank=1, world_size=2, init_method="tcp://a:1")).rank == 1
    assert detect_world(environ, Start(nnodes="2", node_rank=1, rendezvous="a:1")).launcher == "none"


NO_LAUNCHER = {
    "shell of Flux": {"FLUX_URI": "local:///run/flux/local", "FLUX_ENCLOSING_ID": "ƒabc"},
    "shell of LSF": {"LSB_JOBID": "7", "LSB_HOSTS": "batch1 c1 c2", "LSB_MCPU_HOSTS": "batch1 1 c1 42 c2 42"},
    "shell of PBS": {"PBS_JOBID": "9.pbs", "PBS_NODEFILE": "/var/spool/pbs/aux/9", "PBS_NUM_NODES": "2"},
    "terminal of VS Code in a job": {"SLURM_JOB_ID": "3", "SLURM_NTASKS": "8", "TERM_PROGRAM": "vscode"},
    "array of Slurm": {"SLURM_JOB_ID": "3", "SLURM_ARRAY_TASK_ID": "2", "SLURM_NTASKS": "1", "SLURM_PROCID": "0"},
    "indexed job of Kubernetes": {"JOB_COMPLETION_INDEX": "3", "KUBERNETES_SERVICE_HOST": "10.0.0.1"},
    "GitLab": {"CI": "true", "CI_NODE_INDEX": "2", "CI_NODE_TOTAL": "4"},
    "Accelerate's only process": {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_USE_CPU": "True"},
    "address for later": {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"},
    "debugging": {"RANK": "0", "LOCAL_RANK": "0", "NODE_RANK": "0"},
    "settings of MPI": {"OMPI_MCA_btl": "self,tcp", "I_MPI_FABRICS": "shm", "PALS_NRANKS": "4", "MV2_USE_CUDA": "1"},
}  # fmt: skip


@pytest.mark.parametrize("environ", NO_LAUNCHER.values(), ids=NO_LAUNCHER)
def test_a_shell_that_no_launcher_started_trains_alone(environ):
    assert facts(detect_world(environ, NOTHING_SAID)) == (0, 1, 0, 1, "none")


def test_a_world_of_one_needs_no_rank():
    assert facts(detect_world({"WORLD_SIZE": "1"}, NOTHING_SAID)) == (0, 1, 0, 1, "environment")


@pytest.mark.parametrize(
    ("rank", "devices", "local_rank"), [("1", "0", 0), ("5", "0,1,2,3", 1), ("1", "0,1", 1), ("3", "", 0)]
)
def test_a_rank_without_a_local_rank_gets_a_gpu_that_there_is(rank, devices, local_rank):
    environ = {"RANK": rank, "WORLD_SIZE": "8", "MASTER_ADDR": "a", "MASTER_PORT": "1", "CUDA_VISIBLE_DEVICES": devices}
    assert facts(detect_world(environ, NOTHING_SAID)) == (int(rank), 8, local_rank, 1, "environment")


LIGHTNING = {"MASTER_ADDR": "a", "MASTER_PORT": "1", "NODE_RANK": "0", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
RAY_TRAIN = {
    "MASTER_ADDR": "a", "MASTER_PORT": "45131", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "0",
    "RANK": "1", "WORLD_SIZE": "2", "RAY_JOB_ID": "01000000", "ACCELERATE_TORCH_DEVICE": "cpu",
}  # fmt: skip


def test_lightning_counts_ranks_by_node():
    assert facts(detect_world(LIGHTNING, NOTHING_SAID)) == (1, 2, 1, 2, "Lightning")
    second = LIGHTNING | {"NODE_RANK": "1", "WORLD_SIZE": "4"}
    assert facts(detect_world(second | {"LOCAL_WORLD_SIZE": "2"}, NOTHING_SAID)) == (3, 4, 1, 2, "Lightning")
    with pytest.raises(ConfigError, match="a rank of node 1") as caught:
        detect_world(second, NOTHING_SAID)
    assert "set LOCAL_WORLD_SIZE" in str(caught.value.hint)


def test_a_worker_of_ray_train_is_a_rank():
    assert facts(detect_world(RAY_TRAIN, NOTHING_SAID))[:4] == (1, 2, 1, 2)


def test_the_index_of_a_kubernetes_job_is_the_rank_where_the_size_is_set():
    pod = {"JOB_COMPLETION_INDEX": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "train-0.train", "MASTER_PORT": "29400"}
    world = detect_world(pod, NOTHING_SAID)
    assert (world.rank, world.size, world.launcher) == (1, 2, "Kubernetes")
    assert world.init_method == "tcp://train-0.train:29400"
    assert detect_world(pod | {"RANK": "0"}, NOTHING_SAID).rank == 0, "RANK wins"
