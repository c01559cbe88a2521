"""A process group that a script initialised: used, and still there afterwards."""

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from pathlib import Path
import torch, torch.distributed as dist, torch.multiprocessing as mp
import paceline

def main(rank, store, backend_device):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    config = paceline.Config(model="mlp", epochs=1, threads=1, track=(), name="adopted", device=backend_device)
    for _ in range(2):
        result = paceline.train(config)
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == 2, "the group of the script must still work"
    Path(f"result-{rank}").write_text(repr(result.test.loss))
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(main, (sys.argv[1], "cpu"), nprocs=2)
"""


@pytest.mark.slow
def test_a_script_with_a_process_group_trains_as_two_ranks_and_keeps_its_group(elsewhere):
    (elsewhere / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py", str(elsewhere / "store")], capture_output=True, text=True,
                          timeout=250, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "2 ranks, started by your script, process group adopted" in done.stdout
    losses = [path.read_text() for path in sorted(elsewhere.glob("result-*"))]
    assert len(losses) == 2
    assert losses[0] == losses[1]
