"""`paceline train` as a process of its own, as a user would start it; what it says goes into a file."""

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.launch.local import SECONDS_TO_STOP


def run_train(words: Sequence[str], log: Path, environ: Mapping[str, str]) -> int:
    """Run it to its end and return its exit code, below zero when a signal ended it."""
    with log.open("ab") as file:
        # In a session of its own, so that Ctrl-C reaches it once, from here.
        process = subprocess.Popen(
            [sys.executable, "-m", "paceline", "train", *words],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=dict(environ),
            start_new_session=True,
        )
        try:
            return process.wait()
        except BaseException:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(SECONDS_TO_STOP + 5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            raise
