"""Running another `paceline` command as a child whose words go to a file, and which never outlives us."""

import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.launching.local import SECONDS_TO_STOP
from paceline.launching.plan import going_with_us

UNHEARD = 5


def run_child(words: Sequence[str], environ: Mapping[str, str], log: Path) -> tuple[int, str]:
    """Run the command to its end and return its exit code and what it said; Ctrl-C stops it first, then us."""
    with log.open("ab") as file:
        start = file.tell()
        child = subprocess.Popen(
            [*going_with_us("paceline"), *words],
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
