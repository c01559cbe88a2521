"""The journal of a process: one file of JSON lines, opened at the first line, each line written at once."""

import json
import os
import sys
import time
from typing import Any

FOLDER = os.environ.get("_PACELINE_JOURNALS", "")
PLACE_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")
_file: Any = None
_pid: int | None = None
rank: int | None = None
"""The rank of this process, once it has joined a process group."""


def put(kind: str, **values: Any) -> None:
    """Append a line; a forked process opens a journal of its own."""
    global _file, _pid  # noqa: PLW0603 - one journal per process
    if _file is None or _pid != os.getpid():
        _pid = os.getpid()
        handle = os.open(
            os.path.join(FOLDER, f"{os.uname().nodename}-{_pid}.jsonl"), os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644
        )
        _file = os.fdopen(handle, "a", buffering=1, encoding="utf-8", errors="replace")
        put("process", **_process())
    _file.write(json.dumps({"kind": kind, "time": round(time.time(), 6), **values}, default=str) + "\n")


def is_open() -> bool:
    """Tell whether this very process has written a line."""
    return _file is not None and _pid == os.getpid()


def born() -> float:
    """Return the start of this process in seconds since 1970; now, where the kernel does not say."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rsplit(b")", 1)[1].split()[19])
        with open("/proc/stat", "rb") as file:
            boot = next(int(line.split()[1]) for line in file if line.startswith(b"btime"))
        return boot + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, StopIteration):
        return time.time()


def _process() -> dict[str, Any]:
    main = getattr(sys.modules.get("__main__"), "__file__", None) or (sys.argv[0] if sys.argv else "")
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "args": sys.argv,
        "command": sys.orig_argv,
        "main": os.path.abspath(main),
        "folder": os.getcwd(),
        "born": born(),
        "rank_given": int(given) if (given := os.environ.get("RANK", "0")).isdigit() else 0,
        "place": {name: os.environ[name] for name in PLACE_VARIABLES if name in os.environ},
    }
