"""Which rank a process is, from the environment variables of each launcher."""

import pytest

from paceline.core.errors import ConfigError
from paceline.core.start import Start
from paceline.core.world import World
from paceline.parallel.detect import detect_world, slurm_init_method, slurm_job
from paceline.parallel.launchers import in_slurm_task
from paceline.parallel.nodes import first_host
from paceline.parallel.ports import DERIVED_PORTS
from tests.parallel.launcher_variables import ARRAY, MPICH, OPEN_MPI, SALLOC, SBATCH, SRUN, TORCHRUN

NOTHING_SAID = Start()


def facts(world: World) -> tuple:
    return (world.rank, world.size, world.local_rank, world.local_size, world.launcher)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1, 0, 1, "none")),
        (TORCHRUN, (3, 4, 1, 2, "torchrun")),
        (SRUN, (5, 6, 1, 2, "Slurm")),
        (SBATCH, (0, 1, 0, 1, "none")),
        (SALLOC, (0, 1, 0, 1, "none")),
        (SBATCH | TORCHRUN, (3, 4, 1, 2, "torchrun")),
        (SRUN | TORCHRUN, (3, 4, 1, 2, "torchrun")),
        (OPEN_MPI, (3, 4, 1, 2, "mpirun")),
        (MPICH, (1, 2, 1, 2, "mpirun")),
    ],
    ids=[
        "alone",
        "torchrun",
        "srun",
        "sbatch shell",
        "salloc shell",
        "torchrun in sbatch",
        "torchrun in srun",
        "Open MPI",
        "MPICH",
    ],
)
def test_each_launcher_is_understood(environ, expected):
    assert facts(detect_world(environ, NOTHING_SAID)) == expected


def test_variables_without_a_launcher_are_enough():
    environ = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    world = detect_world(environ, NOTHING_SAID)
    assert (world.rank, world.size, world.launcher, world.init_method) == (1, 2, "environment", "tcp://10.0.0.1:29500")


def test_flags_win_over_every_launcher():
    start = Start(rank=1, world_size=3, init_method="tcp://node1:29500")
    world = detect_world(TORCHRUN | SRUN | OPEN_MPI, start)
    assert (world.rank, world.size, world.launcher, world.init_method) == (1, 3, "flags", "tcp://node1:29500")


def test_a_slurm_step_connects_at_its_first_node_with_a_new_port_per_attempt():
    world = detect_world(SRUN, NOTHING_SAID)
    host, _, port = world.init_method.removeprefix("tcp://").partition(":")
    assert host == "gpu03"
    assert int(port) in DERIVED_PORTS
    others = [{"SLURM_RESTART_COUNT": "1"}, {"SLURM_STEP_ID": "1"}, {"SLURM_JOB_ID": "4712"}]
    places = {slurm_init_method(SRUN | other) for other in [{}, *others]}
    assert len(places) == 4


def test_a_job_that_was_queued_again_knows_it_and_keeps_its_name():
    first, second = (detect_world(SRUN | more, NOTHING_SAID) for more in ({}, {"SLURM_RESTART_COUNT": "1"}))
    assert (first.attempt, second.attempt) == (0, 1)
    assert first.launch_id == second.launch_id == "slurm-4711.0"


def test_restarts_by_torchrun_and_by_slurm_add_up():
    again = detect_world(SRUN | TORCHRUN | {"SLURM_RESTART_COUNT": "3"}, NOTHING_SAID)
    assert (again.attempt, again.launch_id) == (5, "slurm-4711.0")
    alone = detect_world(TORCHRUN, NOTHING_SAID)
    assert (alone.attempt, alone.launch_id) == (2, "torchelastic_9w51mc92/job7_7tsek4ud")


def test_a_torchrun_that_names_no_folder_names_no_launch():
    nameless = TORCHRUN | {"TORCHELASTIC_ERROR_FILE": "", "TORCHELASTIC_RUN_ID": "none"}
    assert detect_world(nameless, NOTHING_SAID).launch_id is None


def test_ranks_of_an_array_job_share_a_launch_id_and_each_is_its_own_slurm_job():
    start = Start(rank=1, world_size=3, init_method="file:///shared/meet")
    world = detect_world(ARRAY | {"SLURM_RESTART_COUNT": "1"}, start)
    assert (world.launch_id, world.attempt) == ("slurm-90", 1)
    assert slurm_job(world, ARRAY) == "90_1"


def test_only_the_lead_of_a_job_speaks_to_slurm():
    assert slurm_job(World(rank=0, size=2), SRUN) == "4711"
    assert slurm_job(World(rank=1, size=2), SRUN) is None
    assert slurm_job(World(), {}) is None


@pytest.mark.parametrize(
    ("tasks", "node", "here"), [("2(x3)", "1", 2), ("3,1", "0", 3), ("3,1", "1", 1), ("1,2(x2)", "2", 2), ("", "0", 2)]
)
def test_the_tasks_of_this_node_are_counted(tasks, node, here):
    environ = SRUN | {"SLURM_STEP_TASKS_PER_NODE": tasks, "SLURM_NODEID": node}
    assert detect_world(environ, NOTHING_SAID).local_size == here


def test_the_shell_of_a_job_is_no_task():
    assert in_slurm_task(SRUN)
    assert not in_slurm_task(SBATCH)
    assert not in_slurm_task(SRUN | {"SLURM_STEP_ID": ""})
    assert not in_slurm_task({})
    assert not in_slurm_task(SALLOC)


def test_mpirun_on_one_host_needs_no_address_and_on_several_asks_for_one():
    one_host = {key: value for key, value in OPEN_MPI.items() if key != "MASTER_ADDR"}
    world = detect_world(one_host | {"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, NOTHING_SAID)
    assert world.init_method.startswith("tcp://127.0.0.1:")
    with pytest.raises(ConfigError, match="mpirun started ranks on several hosts, but MASTER_ADDR is not set"):
        detect_world(one_host, NOTHING_SAID)
    assert detect_world(OPEN_MPI | {"MASTER_PORT": "4242"}, NOTHING_SAID).init_method == "tcp://node1:4242"


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"WORLD_SIZE": "2"}, "RANK is not set"),
        ({"WORLD_SIZE": "two", "RANK": "0"}, 'WORLD_SIZE is "two"'),
        ({"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}, "RANK=2 is not a rank"),
        ({"WORLD_SIZE": "2", "RANK": "1", "MASTER_PORT": "1"}, "MASTER_ADDR is not set"),
        ({"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "a"}, "MASTER_PORT is not set"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "OMPI_COMM_WORLD_SIZE is not set"),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "2"}, "OMPI_COMM_WORLD_RANK=2 is not a rank"),
    ],
)
def test_a_broken_environment_is_explained(environ, message):
    with pytest.raises(ConfigError, match=message):
        detect_world(environ, NOTHING_SAID)


def test_env_by_hand_needs_an_address():
    with pytest.raises(ConfigError, match="MASTER_ADDR is not set"):
        detect_world({}, Start(rank=0, world_size=2))


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("login1", "login1"),
        ("gpu[03-05,7],login1", "gpu03"),
        ("gpu[9,11-12]", "gpu9"),
        ("node1,node2", "node1"),
        ("rack1-node[001-128]", "rack1-node001"),
        ("a[1-2]b,c", "a1b"),
        ("tux[1-2]-[3-4]", "tux1-3"),
        ("10.0.0.1", "10.0.0.1"),
        ("localhost", "localhost"),
    ],
)
def test_the_first_host_of_a_list_is_found(nodes, host):
    assert first_host(nodes) == host


def test_master_addr_is_used_under_slurm():
    assert slurm_init_method(SRUN | {"MASTER_ADDR": "gpu04-ib"}).startswith("gpu04-ib:")
    assert slurm_init_method(SRUN | {"MASTER_ADDR": "gpu04-ib", "MASTER_PORT": "7"}) == "gpu04-ib:7"
    assert detect_world(SRUN | {"MASTER_ADDR": "gpu04-ib"}, Start()).launcher == "Slurm"
    with pytest.raises(ConfigError, match="MASTER_ADDR=localhost is another host on each of the 3 nodes"):
        slurm_init_method(SRUN | {"MASTER_ADDR": "localhost"})
    one_node = SRUN | {"SLURM_NNODES": "1", "MASTER_ADDR": "localhost"}
    assert slurm_init_method(one_node).startswith("localhost:")
