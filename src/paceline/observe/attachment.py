"""Running a command with Paceline attached to every Python process below it; output, signals and exit code pass."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which
from types import FrameType
from typing import IO

import psutil

from paceline.core.errors import ConfigError
from paceline.core.stopping import handled_by

ATTACHED = Path(__file__).parent / "attached"
JOURNALS_VARIABLE = "_PACELINE_JOURNALS"
FORWARDED = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip
SECONDS_BETWEEN_LOOKS = 0.5
SECONDS_TO_STOP = 5.0


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """How to attach: the journals, further environment variables, and further folders of attached code."""

    journals: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    folders: Sequence[Path] = ()

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of the command: `sitecustomize` of our folder is imported by every Python below."""
        paths = [str(ATTACHED), *map(str, self.folders), *filter(None, [environ.get("PYTHONPATH")])]
        ours = {
            "PYTHONPATH": os.pathsep.join(paths),
            "PATH": _search_path(environ),
            JOURNALS_VARIABLE: str(self.journals),
        }
        return {**environ, **ours, **self.variables}


def _search_path(environ: Mapping[str, str]) -> str:
    """Return PATH with the folder of this Python at its end, where torchrun is in an environment not activated."""
    return os.pathsep.join([*filter(None, [environ.get("PATH", os.defpath)]), str(Path(sys.executable).parent)])


def check_command(command: Sequence[str]) -> None:
    """Refuse a command that cannot be started, and a Python script that does not exist."""
    if not command:
        raise ConfigError("there is no command to run", hint="put it after --, as in: -- torchrun train.py")
    if which(command[0], path=_search_path(os.environ)) is None:
        hint = f"did you mean python {command[0]}?" if command[0].endswith(".py") else "check the spelling and PATH"
        raise ConfigError(f"there is no command {command[0]}", hint=hint)
    if "-m" in command or "-c" in command:
        return
    script = next((arg for arg in command[1:] if arg.endswith(".py") and not arg.startswith("-")), None)
    if script is not None and not Path(script).is_file():
        raise ConfigError(f"there is no script {script}", hint=f"the working directory is {Path.cwd()}")


def run_attached(
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    output: IO[bytes] | None = None,
    watch: Callable[[], bool] = lambda: False,
) -> int:
    """Run the command and return its exit code, 128 + n after signal n.

    `output` receives stdout and stderr; None to inherit. `watch` is called now and then; when it returns True, the
    command is ended.
    """
    process = subprocess.Popen(
        list(command),
        env=dict(environ),
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        stdin=None if output is None else subprocess.DEVNULL,
        process_group=0,
    )
    with _in_foreground(process.pid), _forwarding(process):
        code = _wait(process, watch)
    return 128 - code if code < 0 else code


def _wait(process: subprocess.Popen[bytes], watch: Callable[[], bool]) -> int:
    while True:
        try:
            return process.wait(timeout=SECONDS_BETWEEN_LOOKS)
        except subprocess.TimeoutExpired:
            if watch():
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    return process.wait(timeout=SECONDS_TO_STOP)
                process.kill()


@contextmanager
def _forwarding(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass signals on: Ctrl-C to the whole process group, as a terminal does, any other to the command alone."""

    def forward(number: int, _frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            if number in {signal.SIGINT, signal.SIGQUIT}:
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)

    with handled_by(forward, FORWARDED):
        yield


@contextmanager
def _in_foreground(group: int) -> Iterator[None]:
    """Give the terminal to the command, so that it can read from it and receives Ctrl-C itself."""
    try:
        owner = os.tcgetpgrp(0)
    except OSError:  # standard input is no terminal
        yield
        return
    if owner != os.getpgrp():
        yield
        return
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    with suppress(OSError):
        os.tcsetpgrp(0, group)
    try:
        yield
    finally:
        with suppress(OSError):
            os.tcsetpgrp(0, owner)
        signal.signal(signal.SIGTTOU, before)


def end_processes(journals: Path) -> int:
    """Kill every process that is still attached to these journals, and return their number."""
    found = attached_processes(journals)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        _, found_alive = psutil.wait_procs(found, timeout=1.0)
        if not found_alive:
            break
        time.sleep(0)
    return len(found)


def attached_processes(journals: Path) -> list[psutil.Process]:
    """Return the processes that inherited the environment of the command, however they were started."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(JOURNALS_VARIABLE) == str(journals):
                found.append(process)
    return found
