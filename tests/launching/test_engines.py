"""Training below real engines on this machine: TorchX with its local scheduler, and Ray with two workers.

Ray and what it needs take half a gigabyte, so CI leaves it out; `make engines` runs these tests with it.
"""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from lab.environment import child_environment
from paceline.records.folder import RunFolder
from paceline.records.reader import read_environments, read_metrics, run_state
from tests.conftest import LONGEST

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * LONGEST)]
ROOT = Path(__file__).parents[2]
needs_ray = pytest.mark.skipif(
    find_spec("ray") is None, reason="ray is not installed: half a gigabyte; make engines runs this test"
)
KILLED_ONCE = '''
import os, signal
from pathlib import Path
from torch import nn

class Net(nn.Module):
    """A small network; the first attempt of rank 1 is killed in the second epoch."""

    def __init__(self, num_classes):
        super().__init__()
        self.layer = nn.Linear(64, num_classes)
        self.calls = 0

    def forward(self, images):
        self.calls += self.training
        mark = Path(__file__).with_name("killed")
        if self.calls == 15 and os.environ.get("RANK") == "1" and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.layer(images.flatten(1))
'''


def start(*words: object, cwd: Path, **variables: str) -> str:
    """Run a command to its end, and return its output."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environ = child_environment(PATH=path, OMP_NUM_THREADS="1", **variables)
    line = [str(word) for word in words]
    answer = subprocess.run(
        line, capture_output=True, text=True, cwd=cwd, env=environ, timeout=2 * LONGEST, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout + answer.stderr


def on_ray(*words: object, cwd: Path) -> str:
    return start(sys.executable, *words, cwd=cwd, RAY_USAGE_STATS_ENABLED="0", RAY_DEDUP_LOGS="0")


def test_the_local_scheduler_of_torchx_starts_ranks(elsewhere):
    pytest.importorskip("torchx", reason="torchx is not installed")
    flags = ("--model", "mlp", "--steps", 4, "--name", "board", "--track", "none", "--runs-dir", elsewhere / "runs")
    launch = ("torchx", "run", "-s", "local_cwd", "dist.ddp", "-j", "1x2", "-m", "paceline", "--")
    assert "SUCCEEDED" in start(*launch, "train", *flags, cwd=elsewhere)
    folder = RunFolder(elsewhere / "runs" / "board" / "001")
    (environment,) = read_environments(folder)
    assert (run_state(folder), environment["launcher"], environment["world_size"]) == ("FINISHED", "torchrun", 2)


@needs_ray
def test_the_example_trains_on_two_workers_of_ray_and_reports(elsewhere):
    out = on_ray(ROOT / "examples" / "ray_train.py", elsewhere, cwd=elsewhere)
    folder = RunFolder(elsewhere / "runs" / "digits-mlp" / "001")
    (environment,) = read_environments(folder)
    assert (run_state(folder), environment["launcher"], environment["world_size"]) == ("FINISHED", "Ray", 2)
    received = re.search(r"Ray received: (\{.*\})", out)
    assert received is not None, out
    (test,) = [record for record in read_metrics(folder) if record.get("split") == "test"]
    assert f"'loss/test': {test['loss']}" in received[1]


@needs_ray
def test_a_run_continues_when_ray_restarts_a_killed_worker(elsewhere):
    (elsewhere / "my.py").write_text(KILLED_ONCE, encoding="utf-8")
    config = {
        "model": f"{elsewhere}/my.py:Net", "epochs": 3, "track": ["ray"], "name": "killed",
        "runs_dir": str(elsewhere / "runs"), "device": "cpu",
    }  # fmt: skip
    job = {"config": config, "num_workers": 2, "max_failures": 1}
    on_ray("-m", "paceline.launching.ray_train", json.dumps(job), cwd=elsewhere)
    assert (elsewhere / "killed").exists()
    (folder,) = map(RunFolder, sorted((elsewhere / "runs" / "killed").glob("0*")))
    assert run_state(folder) == "FINISHED"
    assert len(read_environments(folder)) == 2, "one start before the kill and one after it"
    steps = [record["step"] for record in read_metrics(folder) if record["kind"] == "epoch"]
    assert steps == [11, 22, 33]
