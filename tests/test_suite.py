"""The suite itself: a test that crashes or hangs is one failure, the other tests run, and the run ends."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
INHERITED = (
    "PYTEST_XDIST_WORKER",
    "PYTEST_XDIST_WORKER_COUNT",
    "PYTEST_CURRENT_TEST",
    "TESTS_BF16",
    "ONEDNN_MAX_CPU_ISA",
)
LONGEST = 200
"""Seconds after which a run that has not ended never will."""
HOOKS = "from tests.conftest import pytest_configure, pytest_runtest_setup, pytest_runtest_teardown\n"
QUIET = "import pytest\n@pytest.mark.parametrize('number', range(4))\ndef test_quiet(number): pass\n"
CRASH = """
import os, signal
def test_before(): pass
def test_crash(): os.kill(os.getpid(), signal.SIGILL)
def test_after(): pass
"""
HANG = """
import threading
def test_before(): pass
def test_hang(): threading.Event().wait()
def test_after(): pass
"""
# Locks a mutex twice and holds the interpreter's lock meanwhile: no signal handler and no other thread gets to run.
NATIVE_HANG = """
import ctypes
def test_before(): pass
def test_hang():
    mutex = ctypes.create_string_buffer(256)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)
def test_after(): pass
"""
TEARDOWN_HANG = """
import pytest, threading
@pytest.fixture
def stuck():
    yield
    threading.Event().wait()
def test_before(): pass
def test_hang(stuck): raise AssertionError
def test_after(): pass
"""

AMX_IN_VAIN = """
from paceline.parallel import amx
from paceline.records import environment
environment.vector_instructions = lambda: ["amx_bf16", "amx_tile"]
amx.PROBE = "import os, signal; {condition} or os.kill(os.getpid(), signal.SIGILL)"
"""
BF16 = """
import os, pytest
@pytest.mark.bf16
def test_bf16(): assert os.environ["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_BF16"
"""


def options_of_make_test() -> list[str]:
    """Return the options that `make test` gives to pytest, but for the choice of tests."""
    found = re.search(
        r"^\t\$\(PYTHON\) -m pytest (.*) -m \"\$\(TESTS\)\"$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    assert found is not None
    return found[1].split()


def write_suite(folder: Path, modules: dict[str, str], hooks: str) -> None:
    """Write test modules, and four that always pass, with the settings and hooks of our own suite."""
    shutil.copy(ROOT / "pyproject.toml", folder)
    tests = folder / "tests"
    tests.mkdir()
    (tests / "conftest.py").write_text(hooks + HOOKS)
    for name, text in ({f"quiet_{number}": QUIET for number in range(4)} | modules).items():
        (tests / f"test_{name}.py").write_text(text)


@pytest.fixture
def run_suite(tmp_path):
    """Return a function that runs a suite of its own as `make test` does, and returns its exit code and its output."""
    started = []

    def run(*options: str, hooks: str = "", **modules: str) -> tuple[int, str]:
        write_suite(tmp_path, modules, hooks)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options_of_make_test(), *options]
        environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
        environ = {name: value for name, value in environ.items() if name not in INHERITED}
        both: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = subprocess.Popen(command, cwd=tmp_path, env=environ, start_new_session=True, **both)
        started.append(process)
        output, _ = process.communicate(timeout=LONGEST)
        return process.returncode, output

    yield run
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(LONGEST)


def outcome(output: str) -> tuple[list[str], str]:
    """Return the tests that failed, and the last line without the time."""
    failed = re.findall(r"^(?:FAILED|ERROR) tests/(\S+)", output, re.MULTILINE)
    (last,) = re.findall(r"^=+ (.*) in .* =+$", output, re.MULTILINE)
    return sorted(failed), last


def test_a_test_that_kills_its_worker_is_one_failure(run_suite):
    code, output = run_suite(crash=CRASH, other_crash=CRASH)
    crashed = ["test_crash.py::test_crash", "test_other_crash.py::test_crash"]
    assert (code, outcome(output)) == (1, (crashed, "2 failed, 20 passed")), output


def test_a_test_that_hangs_is_one_failure(run_suite):
    code, output = run_suite("-otimeout=4", "-ofaulthandler_timeout=8", hang=HANG, native_hang=NATIVE_HANG)
    hung = ["test_hang.py::test_hang", "test_native_hang.py::test_hang"]
    assert (code, outcome(output)) == (1, (hung, "2 failed, 20 passed")), output


@pytest.mark.long
def test_a_teardown_that_hangs_after_a_failure_ends(run_suite):
    code, output = run_suite("-otimeout=4", "-ofaulthandler_timeout=8", hang=TEARDOWN_HANG)
    failed, last = outcome(output)
    assert (code, set(failed)) == (1, {"test_hang.py::test_hang"}), output
    assert last.endswith("18 passed"), output


@pytest.mark.long
def test_a_module_whose_import_kills_the_worker_ends_the_run(run_suite):
    code, output = run_suite("--max-worker-restart=1", crash="import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    assert code != 0, output
    assert "maximum crashed workers reached" in output, output


@pytest.mark.parametrize(
    ("condition", "last"),
    [
        ("'ONEDNN_MAX_CPU_ISA' in os.environ", "17 passed"),
        pytest.param("False", "16 passed, 1 skipped", marks=pytest.mark.long),
    ],
)
def test_where_bf16_crashes_its_tests_run_without_amx_or_are_skipped(run_suite, condition, last):
    code, output = run_suite(hooks=AMX_IN_VAIN.format(condition=condition), bf16=BF16)
    assert (code, outcome(output)) == (0, ([], last)), output
    assert ("torch crashes on this CPU when it computes in bf16" in output) == ("skipped" in last)
