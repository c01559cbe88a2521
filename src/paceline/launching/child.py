"""Running another `paceline` command as a child whose words go to a file, and which never outlives us."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from paceline.core.load import PREFIX
from paceline.launching.local import SECONDS_TO_STOP

UNHEARD = 5
GOING_WITH_US = """
import runpy
from paceline.launching.agent import stop_with_parent
stop_with_parent()
runpy.run_module("paceline", run_name="__main__", alter_sys=True)
"""
"""It asks for its end itself: between fork and exec, Python code may hang when there are threads, as in a notebook."""


def inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process that gets its settings from us, and its ranks from a torchrun of ours.

    torchrun would take its options from PET_… variables, which speak of another one.
    """
    return {key: value for key, value in environ.items() if not key.startswith((PREFIX, "PET_"))}


def run_child(words: Sequence[str], environ: Mapping[str, str], log: Path) -> tuple[int, str]:
    """Run the command to its end and return its exit code and what it said; Ctrl-C stops it first, then us."""
    with log.open("ab") as file:
        start = file.tell()
        child = subprocess.Popen(
            [sys.executable, "-c", GOING_WITH_US, *words],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C reaches us alone
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
    """Take SIGTERM for Ctrl-C, so that what runs children stops them and cleans up."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Stop the child in good order, and for good when it does not stop or when the user insists."""
    child.send_signal(signal.SIGTERM)
    try:
        child.wait(SECONDS_TO_STOP + UNHEARD)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        child.send_signal(signal.SIGINT)  # the second signal ends its ranks at once
        try:
            child.wait(UNHEARD)
        except subprocess.TimeoutExpired:
            child.kill()
