"""SIGTERM in every phase of training, on real ranks: the run is saved, resumes exactly, and no process is left."""

import re
import signal
import subprocess
from pathlib import Path

import pytest
import torch

from lab.environment import child_environment
from lab.runs import PACELINE
from paceline.engine.checkpoint import Checkpoints, load_checkpoint
from paceline.records.entries import State
from paceline.records.folder import RunFolder
from paceline.records.reader import run_state
from tests.conftest import LONGEST
from tests.launching.conftest import no_rank_left, only_run

STEP = 15
"""The training step in which a rank waits for the signal."""
WAITING = f'''
import os, signal, time, torch
from pathlib import Path
from torch.utils.data import Dataset

STEP = {STEP}

def trained():
    """Return the steps that this rank has begun; model and data are imported as two modules."""
    return int(os.environ.get("TEST_TRAINED", "0"))

def wait_in(phase):
    """Wait for SIGTERM on one rank, once, in the phase that TEST_PHASE names; the lead evaluates a small set alone."""
    rank = "1" if phase in {{"data", "backward"}} else "0"
    asked = os.environ.get("TEST_PHASE") == phase and os.environ.get("RANK") == rank
    if not asked or trained() < STEP or Path("waiting").exists():
        return
    handled, arrived = signal.getsignal(signal.SIGTERM), []
    def handle(*facts):
        arrived.append(1)
        handled(*facts)
    signal.signal(signal.SIGTERM, handle)
    Path("waiting").write_text(str(trained()))
    limit = time.monotonic() + 120
    while not arrived and time.monotonic() < limit:
        time.sleep(0.02)
    signal.signal(signal.SIGTERM, handled)

class Images(Dataset):
    num_classes = 10
    def __init__(self, number):
        generator = torch.Generator().manual_seed(number)
        self.images = torch.rand(number, 1, 8, 8, generator=generator)
    def __len__(self):
        return len(self.images)
    def __getitem__(self, index):
        wait_in("data")
        return self.images[index], int(self.images[index].sum()) % 10

def data():
    return Images(640), Images(64)

class Backward(torch.autograd.Function):
    @staticmethod
    def forward(context, values):
        return values.clone()
    @staticmethod
    def backward(context, gradient):
        wait_in("backward")
        return gradient

class Net(torch.nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.linear = torch.nn.Linear(64, num_classes)
        self.register_state_dict_pre_hook(lambda *_: wait_in("checkpoint"))
    def forward(self, images):
        if self.training:
            os.environ["TEST_TRAINED"] = str(trained() + 1)
        else:
            wait_in("evaluation")
        return Backward.apply(self.linear(images.flatten(1)))
'''
SETTINGS = ("--model=waits.py:Net", "--data=waits.py:data", "--epochs=4", "--global-batch=64", "--lr=0.02",
            "--valid-split=0.1", "--track=none", "--threads=1", "--workers=0", "--eval-every=4 steps",
            "--save-every=4 steps", "--device=cpu")  # fmt: skip
RANKS = ("--nproc=2",)


def weights(run: RunFolder) -> dict[str, torch.Tensor]:
    state = load_checkpoint(Checkpoints(run.checkpoints, keep=1).named("last"))
    return {name: value.clone() for name, value in state["model"].items()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> dict[str, torch.Tensor]:
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "waits.py").write_text(WAITING)
    command = [*PACELINE, "train", *SETTINGS, *RANKS]
    answer = subprocess.run(
        command, cwd=folder, env=child_environment(), capture_output=True, text=True, check=False, timeout=LONGEST
    )
    assert answer.returncode == 0, answer.stderr
    (path,) = folder.glob("runs/*/*")
    return weights(RunFolder(path))


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["data", "backward", "evaluation", "checkpoint"])
def test_sigterm_in_any_phase_leaves_a_run_that_resumes_exactly(start, elsewhere, wait_until, undisturbed, phase):
    (elsewhere / "waits.py").write_text(WAITING)
    process = start("train", *SETTINGS, *RANKS, env=child_environment(TEST_PHASE=phase))
    wait_until(lambda: Path("waiting").exists() or process.poll() is not None, f"a rank to be in the phase {phase}")
    assert process.poll() is None, "it ended without this phase"
    process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=LONGEST)
    assert (process.returncode, errors) == (128 + signal.SIGTERM, "")
    stopped = re.search(r"stopped after step (\d+) of \d+, saved; to resume", output)
    assert stopped is not None, output
    assert int(stopped[1]) >= int(Path("waiting").read_text()), "no step that had begun is lost"
    assert no_rank_left(elsewhere)
    run = only_run()
    assert run_state(run) == State.STOPPED
    assert not list(run.path.rglob("*.partial"))

    again = start("train", "--resume", run.path, *RANKS, env=child_environment())
    output, errors = again.communicate(timeout=LONGEST)
    assert again.returncode == 0, errors
    assert f"resumed after step {stopped[1]} of" in output
    assert run_state(run) == State.FINISHED
    resumed = weights(run)
    assert resumed.keys() == undisturbed.keys()
    assert all(torch.equal(resumed[name], undisturbed[name]) for name in undisturbed)
