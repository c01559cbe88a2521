"""Where the ranks of this host are in their code: each writes its Python stack when another rank asks for it."""

import faulthandler
import json
import os
import re
import signal
import sysconfig
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from paceline.records.folder import RunFolder
from paceline.records.reader import is_alive

ASK = signal.SIGUSR2
SECONDS_TO_ANSWER = 2.0
THREAD = re.compile(r"^(?:Current thread|Thread) .*:$", re.MULTILINE)
FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)$', re.MULTILINE)
LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), str(Path(__file__).parents[1]), "<")


@contextmanager
def stack_on_request(path: Path) -> Iterator[None]:
    """Write the stacks of all threads to this file at SIGUSR2, even while a thread hangs in C++."""
    path.parent.mkdir(parents=True, exist_ok=True)  # without a shared disk only the lead has created it
    with path.open("w", encoding="utf-8") as file:
        faulthandler.register(ASK, file=file, all_threads=True)
        try:
            yield
        finally:
            faulthandler.unregister(ASK)
            if path.exists() and not _read(path):
                path.unlink()


def describe_stacks(folder: RunFolder, files: Mapping[int, Mapping[str, Any] | None], host: str) -> list[str]:
    """Ask all other living ranks of this host for their stacks, and return where each of them is in its code."""
    asked = {rank: folder.rank_stack(rank) for rank, file in files.items() if file and _ask(file, host)}
    deadline = time.monotonic() + SECONDS_TO_ANSWER
    while not all(_is_whole(_read(path)) for path in asked.values()) and time.monotonic() < deadline:
        time.sleep(0.05)
    places = {rank: place_of(_read(path)) for rank, path in asked.items()}
    return [f"rank {rank} is in {place}" for rank, place in places.items() if place is not None]


def waiting_collective() -> str | None:
    """Return the collective that this rank started last, from torch's flight recorder; None if it kept none."""
    module = getattr(torch._C, "_distributed_c10d", None)  # noqa: SLF001 - has no public name
    dump = getattr(module, "_dump_fr_trace_json", None)
    return None if dump is None else describe_collective(dump())


def describe_collective(trace: bytes | str) -> str | None:
    """Return the last collective of a flight record: "all_reduce of 11×5 numbers, number 2"."""
    try:
        last = json.loads(trace)["entries"][-1]
        sizes = ", ".join("×".join(map(str, size)) or "1" for size in last["input_sizes"][:3])
        return f"{last['profiling_name'].rpartition(':')[2]} of {sizes} numbers, number {last['collective_seq_id']}"
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None


def place_of(stacks: str) -> str | None:
    """Return the user's innermost function in the main thread of the newest dump; any function if there is none."""
    main = THREAD.split(stacks)[-1]  # the main thread is the oldest, and written last
    frames = list(FRAME.finditer(main))
    if not frames:
        return None
    own = next((frame for frame in frames if not frame["file"].startswith(LIBRARIES)), frames[0])
    return f"{own['function']} ({own['file']}, line {own['line']})"


def _ask(file: Mapping[str, Any], host: str) -> bool:
    """Ask a rank for its stack, unless it is this one, is elsewhere, or would die of the signal."""
    if file["host"] != host or file["pid"] == os.getpid() or not is_alive(dict(file)) or not _handles(file["pid"]):
        return False
    try:
        os.kill(file["pid"], ASK)
    except OSError:
        return False
    return True


def _handles(pid: int) -> bool:
    """Tell whether a process has a handler for the signal, whose default is to end the process."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (ASK - 1) & 1)


def _is_whole(stacks: str) -> bool:
    """Tell whether the main thread, which is written last, is there down to the start of the program."""
    frames = list(FRAME.finditer(THREAD.split(stacks)[-1]))
    return bool(frames) and frames[-1]["function"] in {"<module>", "_run_module_as_main"}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
