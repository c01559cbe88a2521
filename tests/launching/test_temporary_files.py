"""A launcher leaves nothing in the temporary directory, however its ranks end."""

import signal
from pathlib import Path

import pytest

from lab.environment import child_environment
from tests.conftest import LONGEST
from tests.launching.conftest import SETTINGS, processes_in


@pytest.fixture
def temporary(elsewhere, monkeypatch) -> Path:
    """Return the empty temporary directory of what is started; torch's own cache, one for all runs, is elsewhere."""
    folder = elsewhere / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(elsewhere / "inductor"))
    return folder


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("fault", "code"),
    [(None, 0), pytest.param("raise", 1, marks=pytest.mark.long), pytest.param("SIGKILL", 1, marks=pytest.mark.slow)],
)
def test_ranks_that_end_by_themselves_leave_no_temporary_files(start, faulty, temporary, fault, code):
    faults = {} if fault is None else {"TEST_FAULT": fault}
    words = ["--model", faulty, "--steps", "15", "--nproc", "2", "--track", "none"]
    process = start("train", *words, env=child_environment(**faults))
    _, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == code, errors
    assert names_in(temporary) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_ranks_that_are_stopped_while_they_train_leave_no_temporary_files(start, temporary, wait_until, number):
    process = start("train", "--model", "mlp", "--epochs", "100000", "--nproc", "2", "--track", "none")
    wait_until(lambda: list(Path("runs").glob("*/*/checkpoints/last")), "a first checkpoint")
    assert names_in(temporary), "there is something to remove"
    process.send_signal(number)
    _, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 128 + number, errors
    assert names_in(temporary) == []


def test_ranks_that_are_stopped_before_they_train_leave_no_temporary_files(start, elsewhere, temporary, wait_until):
    process = start("train", *SETTINGS, "--nproc", "2")
    wait_until(lambda: any("--config" in words for words in processes_in(elsewhere)), "a rank")
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=LONGEST)
    assert process.returncode == 143, errors
    assert names_in(temporary) == []
