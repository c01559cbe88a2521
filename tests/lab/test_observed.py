"""`paceline observe` of a script that knows nothing of Paceline, on two nodes of a real Slurm."""

import sys
from pathlib import Path

from lab.runs import PACELINE, ends
from paceline.explain.time_split import split_time
from paceline.records.folder import RunFolder
from paceline.records.phases import read_phases

SCRIPT = Path(__file__).parents[1] / "observe" / "scripts" / "plain.py"
RANKS = f'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS exec {sys.executable} "{SCRIPT}"'


def test_ranks_of_srun_are_observed(slurm, tmp_path):
    place = {"MASTER_ADDR": slurm.hosts.address(1), "MASTER_PORT": "29517", "GLOO_SOCKET_IFNAME": "eth0"}
    environ = slurm.environment | place | {"OMP_NUM_THREADS": "1"}
    srun = ["srun", "--nodes=2", "--ntasks-per-node=1", "--nodelist=node1,node2", "sh", "-c", RANKS]
    ends(slurm.start(*PACELINE, "observe", "--run", "it", "--", *srun, cwd=tmp_path, env=environ))
    split = split_time(read_phases(RunFolder(tmp_path / "runs" / "it" / "001")))
    assert split is not None
    assert (split.total.steps, split.facts.hosts) == (60, ["node1", "node2"])
    assert (split.total.phases["forward"] > 0).all()
