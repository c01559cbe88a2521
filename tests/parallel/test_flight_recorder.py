"""The last collectives of a rank, recorded by a real process group of one."""

import json
import os
import subprocess
import sys

from paceline.parallel.flight_recorder import write_collectives

PROGRAM = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
from paceline.parallel.flight_recorder import write_collectives

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.all_reduce(torch.ones(3))
dist.broadcast(torch.ones(5), src=0)
print(write_collectives(Path(sys.argv[1])))
"""


def test_the_collectives_of_a_process_group_are_written_in_order(tmp_path):
    path = tmp_path / "rank-000.collectives"
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
        env=os.environ,
    )
    assert answer.stdout == "True\n"
    names = [entry["profiling_name"] for entry in json.loads(path.read_text())]
    assert names == ["gloo:all_reduce", "gloo:broadcast"]


def test_a_folder_that_is_gone_is_no_second_error(tmp_path):
    assert write_collectives(tmp_path / "gone" / "rank-000.collectives") is False
