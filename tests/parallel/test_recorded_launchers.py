"""The variables that real launchers set in two ranks of one host (srun: four on two), recorded below each of them.

Variables that only name paths, ports and addresses of the recording host are left out. To record a launcher again,
let it start `env` instead of a training script.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from paceline.core.errors import ConfigError
from paceline.core.start import Start
from paceline.parallel.detect import detect_world

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("recorded_launchers.json").read_text(encoding="utf-8"))
ANSWERED = {name: facts for name, facts in RECORDED.items() if facts["launcher"] is not None}


def test_the_record_has_every_launcher_that_installs_without_a_cluster():
    names = {"torchrun", "srun", "open-mpi", "mpich", "intel-mpi", "ray-train", "torchx", "accelerate", "lightning"}
    assert set(ANSWERED) == names
    assert all(len(facts["ranks"]) >= 2 for facts in ANSWERED.values())


@pytest.mark.parametrize("name", ANSWERED)
def test_every_recorded_process_is_its_own_rank(name):
    facts = ANSWERED[name]
    ranks = facts["ranks"]
    worlds = [detect_world(environ, Start()) for environ in ranks]
    hosts = 2 if name == "srun" else 1
    assert [world.rank for world in worlds] == list(range(len(ranks)))
    assert {world.size for world in worlds} == {len(ranks)}
    assert [world.local_rank for world in worlds] == list(range(len(ranks) // hosts)) * hosts
    assert {world.local_size for world in worlds} == {len(ranks) // hosts}
    assert {world.launcher for world in worlds} == {facts["launcher"]}
    assert len({world.init_method for world in worlds}) == 1, "all ranks connect at the same address"


@pytest.mark.parametrize("name", ANSWERED)
def test_a_process_whose_size_is_hidden_never_trains_alone(name):
    sizes = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
    environ = {key: value for key, value in ANSWERED[name]["ranks"][1].items() if key not in sizes}
    assert environ != ANSWERED[name]["ranks"][1]
    with pytest.raises(ConfigError):
        detect_world(environ, Start())


def test_the_only_process_that_accelerate_starts_for_cpus_refuses_to_train_alone():
    (environ,) = RECORDED["accelerate-cpu"]["ranks"]
    with pytest.raises(ConfigError, match="suggests that this is one of several ranks"):
        detect_world(environ, Start())
