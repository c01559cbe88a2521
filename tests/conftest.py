"""What all tests share: one thread, an environment without settings, and tiny runs in a folder of their own."""

import os
import time
from pathlib import Path

import pytest

import paceline
from paceline.core.config import Config
from paceline.records.folder import RunFolder

LONGEST_WAIT = 60
"""Seconds after which a wait is a failure; nothing is ever expected to take so long."""
FOREIGN = ("PACELINE_", "WANDB_", "SLURM_")
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(scope="session", autouse=True)
def neutral_environment():
    """Hide what the machine that runs the tests happens to set."""
    patch = pytest.MonkeyPatch()
    for name in list(os.environ):
        if name.startswith(FOREIGN) or name in LAUNCHER:
            patch.delenv(name)
    yield
    patch.undo()


@pytest.fixture
def elsewhere(tmp_path, monkeypatch) -> Path:
    """Work in an empty folder, which is returned, so that nothing is left in the checkout."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def one_thread():
    """Compute with one thread, whose results are the same bits on every run."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def small_config(tmp_path):
    """Return settings of a run that takes a tenth of a second and leaves its folder in tmp_path/runs."""
    return make_small_config(tmp_path / "runs")


@pytest.fixture
def small_run(tmp_path, one_thread):
    """Return a function that makes such a run, with other settings where they are given, and returns its result."""
    return lambda **settings: paceline.train(make_small_config(tmp_path / "runs", **settings))


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory) -> RunFolder:
    """Return the folder of one finished run, to be read only."""
    result = paceline.train(make_small_config(tmp_path_factory.mktemp("shared") / "runs"))
    return RunFolder(result.folder)


@pytest.fixture
def wait_until():
    """Return a function that polls a condition, and fails when it does not come true in a long while."""

    def wait(condition, what):
        deadline = time.monotonic() + LONGEST_WAIT
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain for: {what}"
            time.sleep(0.02)

    return wait


def make_small_config(runs_dir: Path, **settings) -> Config:
    values = {"model": "mlp", "epochs": 2, "threads": 1, "track": (), "device": "cpu", "runs_dir": runs_dir}
    return Config(**(values | settings))
