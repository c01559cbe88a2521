"""Runs in the lab: the command that starts them, and what must be true of them afterwards."""

import subprocess
import sys
from pathlib import Path

import pytest

from lab.hosts import LONGEST
from paceline.core.metrics import Scores
from paceline.engine.checkpoint import Checkpoints, load_checkpoint
from paceline.records.folder import RunFolder
from paceline.records.reader import read_metrics

SMALL = ("--model=mlp", "--threads=1", "--track=none", "--device=cpu")
PACELINE = (sys.executable, "-m", "paceline")


def train(*args: object) -> tuple[object, ...]:
    """Return the arguments that train the smallest model, for two epochs unless the given ones say how many."""
    epochs = () if any(str(arg).startswith("--epochs") for arg in args) else ("--epochs=2",)
    return ("train", *SMALL, *epochs, *args)


def ends(*processes: subprocess.Popen, code: int | None = 0) -> list[tuple[str, str]]:
    """Wait for commands, check their exit codes and that none shows a traceback, and return what each printed.

    Any exit code above 0 is accepted where `code` is None.
    """
    answers = [process.communicate(timeout=LONGEST) for process in processes]
    outputs = "\n".join(
        f"--- {process.returncode}\n{out}{err}" for process, (out, err) in zip(processes, answers, strict=True)
    )
    codes = [process.returncode for process in processes]
    assert all(codes) if code is None else codes == [code] * len(processes), outputs
    assert "Traceback" not in outputs, outputs
    return answers


def run_below(folder: Path) -> RunFolder:
    """Return the one run that was made below a folder."""
    runs = list(folder.glob("runs/*/*/config.toml"))
    assert len(runs) == 1, runs
    return RunFolder(runs[0].parent)


def is_like(score: Scores, folder: RunFolder) -> None:
    """Check that a run ended with the score of another, up to rounding."""
    (test,) = [record for record in read_metrics(folder) if record.get("split") == "test"]
    assert test["samples"] == score.samples
    assert test["loss"] == pytest.approx(score.loss, rel=1e-3)
    assert test["top1"] == pytest.approx(score.top1, abs=0.01)


def weights(folder: RunFolder) -> dict:
    """Return the last weights of a run."""
    return load_checkpoint(Checkpoints(folder.checkpoints, keep=1).named("last"))["model"]
