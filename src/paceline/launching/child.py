"""Running another `paceline` command as a child process that never outlives this one."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from paceline.core.load import PREFIX
from paceline.launching.reaper import SECONDS_TO_STOP

SECONDS_TO_REACT = 5
STOP_WITH_PARENT = """
import runpy
from paceline.core.processes import end_with_parent
end_with_parent()
runpy.run_module("paceline", run_name="__main__", alter_sys=True)
"""
"""The child requests SIGTERM itself: between fork and exec, Python code may hang if there are threads."""


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that gets its settings from us, and its ranks from our torchrun.

    torchrun would read its options from PET_… variables, which are meant for another torchrun.
    """
    return {key: value for key, value in environ.items() if not key.startswith((PREFIX, "PET_"))}


def run_child(args: Sequence[str], environ: Mapping[str, str], log: Path) -> tuple[int, str]:
    """Run the command and return its exit code and output; Ctrl-C stops the child first, then this process."""
    with log.open("ab") as file:
        start = file.tell()
        child = subprocess.Popen(
            [sys.executable, "-c", STOP_WITH_PARENT, *args],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # only this process receives Ctrl-C
        )
        try:
            code = child.wait()
        finally:
            if child.poll() is None:
                _stop(child)
    with log.open("rb") as file:
        file.seek(start)
        return code, file.read().decode(errors="replace")


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that code that runs children stops them and cleans up."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Stop the child gracefully; kill it if it does not stop, or on a second Ctrl-C."""
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(SECONDS_TO_STOP + SECONDS_TO_REACT)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        child.send_signal(signal.SIGINT)  # the second signal ends its ranks at once
        try:
            child.wait(SECONDS_TO_REACT)
        except subprocess.TimeoutExpired:
            child.kill()
