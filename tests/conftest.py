"""What all tests share: one thread, an environment without settings, and tiny runs in a folder of their own."""

import faulthandler
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

import paceline
from lab.environment import child_environment
from paceline.core.config import Config
from paceline.records import environment
from paceline.records.folder import RunFolder

# no wall-clock time decides a test, and what CI says of a change depends on the change alone
settings.register_profile("paceline", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("paceline")

LONGEST = 300
"""Seconds after which a wait is a failure; nothing is ever expected to take so long."""
FOREIGN = (
    "PACELINE_",
    "WANDB_",
    "SLURM_",
    "PET_",
    "SKYPILOT_",
    "OMPI_",
    "PMI",
    "MPI_",
    "MV2_",
    "MVP_",
    "HOROVOD_",
    "ALPS_",
    "FLUX_",
    "PALS_",
    "JSM_",
)
LAUNCHER = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
TERMINAL = ("COLUMNS", "LINES")

BF16 = "TESTS_BF16"
STDERR = pytest.StashKey[int]()


def pytest_configure(config):
    """Draw the seed of the campaign's sample and try bf16 once, before workers of xdist start and torch is imported."""
    os.environ.setdefault("CAMPAIGN_SEED", str(secrets.randbelow(10**6)))
    os.environ.setdefault(
        "OMP_NUM_THREADS", "1"
    )  # threads that spin at barriers slow each other and the other worker down
    if BF16 not in os.environ:
        os.environ[BF16] = find_bf16()
    config.stash[STDERR] = os.dup(2)  # no output is captured yet
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in `nohup make test &`: processes would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)


def find_bf16() -> str:
    """Return how this CPU computes in bf16; where that is without AMX, all processes of the tests compute so."""
    limit = "ONEDNN_MAX_CPU_ISA"
    if limit in os.environ or not any(name.startswith("amx") for name in environment.vector_instructions()):
        return "works"
    from paceline.parallel.amx import WITHOUT_AMX, try_bf16

    found = try_bf16(os.environ)
    if found == "without AMX":
        os.environ[limit] = WITHOUT_AMX
    return found


def pytest_runtest_setup(item):
    if item.get_closest_marker("bf16") and os.environ[BF16] == "fails":
        pytest.skip("torch crashes on this CPU when it computes in bf16")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    """Limit the teardown of a failed test too: pytest and pytest-timeout both drop their limits at a failure."""
    seconds = item.config.getini("faulthandler_timeout")
    faulthandler.dump_traceback_later(float(seconds), exit=True, file=item.config.stash[STDERR])
    return (yield)  # pytest cancels it with its own


def pytest_report_header():
    return f"campaign seed: {os.environ['CAMPAIGN_SEED']} (CAMPAIGN_SEED repeats it); bf16 {os.environ[BF16]}"


@pytest.fixture(scope="session", autouse=True)
def neutral_environment():
    """Hide what the machine that runs the tests happens to set."""
    patch = pytest.MonkeyPatch()
    for name in list(os.environ):
        if name.startswith(FOREIGN) or name in LAUNCHER or name in TERMINAL:
            patch.delenv(name)
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def same_environment():
    """Remove what a command that ran in this process has set, such as CUDA_VISIBLE_DEVICES for --devices."""
    before = dict(os.environ)
    yield
    if os.environ != before:
        os.environ.clear()
        os.environ.update(before)


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
    """Return a function that makes settings of a run of a tenth of a second, whose folder is in tmp_path/runs."""
    return lambda **settings: make_small_config(tmp_path / "runs", **settings)


@pytest.fixture
def small_run(small_config, one_thread):
    """Return a function that makes such a run, with other settings where they are given, and returns its result."""
    return lambda **settings: paceline.train(small_config(**settings))


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory) -> RunFolder:
    """Return the folder of one finished run, to be read only."""
    result = paceline.train(make_small_config(tmp_path_factory.mktemp("shared") / "runs"))
    return RunFolder(result.folder)


@pytest.fixture
def wait_until():
    """Return a function that polls a condition until it is true, and fails after a timeout."""

    def wait(condition, what):
        deadline = time.monotonic() + LONGEST
        while not condition():
            assert time.monotonic() < deadline, f"timed out waiting for: {what}"
            time.sleep(0.02)

    return wait


@pytest.fixture
def start(elsewhere):
    """Return a function that starts the real command, in a process group of its own."""
    started = []

    def start_command(*words, **options) -> subprocess.Popen:
        line = [sys.executable, "-m", "paceline", *map(str, words)]
        usual = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": child_environment(), "cwd": elsewhere}
        process = subprocess.Popen(line, text=True, start_new_session=True, **(usual | options))
        started.append(process)
        return process

    yield start_command
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.wait(LONGEST)


def small_settings(runs_dir: Path, **settings: Any) -> dict[str, Any]:
    values = {"model": "mlp", "epochs": 2, "threads": 1, "track": (), "device": "cpu", "runs_dir": runs_dir}
    return values | settings


def make_small_config(runs_dir: Path, **settings: Any) -> Config:
    return Config(**small_settings(runs_dir, **settings))
