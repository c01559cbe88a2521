"""What the tests of starting ranks share: a model that fails, and what is left of a job."""

import socket
import subprocess
from pathlib import Path

import psutil
import pytest

from paceline.records.folder import RunFolder
from tests.conftest import LONGEST

SETTINGS = ["--model", "mlp", "--epochs", "2", "--lr", "0.02", "--track", "none", "--threads", "1"]

FAULTY = '''
import os, signal, torch

class Net(torch.nn.Module):
    """Fails on rank 1 at its fifth step, in the way that the environment asks for, in the first attempt only."""

    def __init__(self, num_classes):
        super().__init__()
        self.linear, self.steps = torch.nn.Linear(64, num_classes), 0
        if os.environ.get("TEST_FAULT") == "early" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise ValueError("a fault before there is a run")

    def forward(self, images):
        self.steps += self.training
        first = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
        if self.steps == 15 and os.environ.get("RANK") == "1" and first:
            fault = os.environ.get("TEST_FAULT")
            if fault == "raise":
                raise ValueError("a fault that was planted")
            if fault is not None:
                os.kill(os.getpid(), getattr(signal, fault))
        return self.linear(images.flatten(1))
'''


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def faulty(elsewhere) -> str:
    (elsewhere / "faulty.py").write_text(FAULTY)
    return "faulty.py:Net"


def only_run() -> RunFolder:
    runs = list(Path("runs").glob("*/*"))
    assert len(runs) == 1, "all ranks share one folder"
    return RunFolder(runs[0])


def finish(processes: list[subprocess.Popen]) -> list[str]:
    outputs = [process.communicate(timeout=LONGEST) for process in processes]
    texts = [output + errors for output, errors in outputs]
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(texts)
    return texts


def processes_in(folder: Path) -> list[list[str]]:
    """Return the words of every process of ours that works in this folder."""
    found = [process.info for process in psutil.process_iter(["cmdline", "cwd"])]
    words = [info["cmdline"] or [] for info in found if info["cwd"] == str(folder)]
    return [line for line in words if any(word.startswith("paceline") for word in line)]


def no_rank_left(folder: Path) -> bool:
    return not processes_in(folder)
