"""Evidence that needs no torch: the lines that each rank runs, the files that it writes, the numbers that it prints."""

import atexit
import os
import sys
import threading
from types import FrameType
from typing import Any

from paceline_attach import journal
from paceline_attach.callsite import UNKNOWN, callsite, is_users, library_functions

MOST_PRINTS = 1500
SCRATCH = ("/dev/", "/proc/", "/sys/", "/tmp/pymp-", "/tmp/torchelastic", "/tmp/torchinductor")
CACHES = (
    os.path.realpath(os.path.expanduser("~")) + "/.",
    *(
        os.path.realpath(os.environ[name])
        for name in ("XDG_CACHE_HOME", "MPLCONFIGDIR", "HF_HOME")
        if name in os.environ
    ),
)
"""Libraries keep files there, and take care of each other."""
EVENTS = frozenset({"open", "os.mkdir", "os.rename", "urllib.Request", "socket.getaddrinfo", "shutil.copyfile"})


class Early:
    """The state of this process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.thread = threading.get_ident()
        self.lines: dict[str, set[int]] = {}
        self.first: dict[tuple[str, int], int] = {}
        """How many collectives a rank had called when it first ran a line."""
        self.serial = 0
        """Collectives called so far: tells before which of them something happened."""
        self.prints = 0
        self.is_busy = False

    def is_here(self) -> bool:
        """Tell whether this is the main thread of the process, and not our own code."""
        return not self.is_busy and os.getpid() == self.pid and threading.get_ident() == self.thread


state = Early()


def _trace_line(frame: FrameType, event: str, _arg: Any) -> Any:
    if event == "line":
        name, line = frame.f_code.co_filename, frame.f_lineno
        seen = state.lines.setdefault(name, set())
        if line not in seen:
            seen.add(line)
            state.first[name, line] = state.serial
    return _trace_line


def _trace_call(frame: FrameType, event: str, _arg: Any) -> Any:
    if event == "call" and is_users(frame.f_code.co_filename):
        return _trace_line
    return None


def _path(value: Any) -> str | None:
    """Return the real path of a file that matters; None for scratch files and our own."""
    if not isinstance(value, str | bytes | os.PathLike):
        return None
    path = os.path.realpath(os.fsdecode(value))
    ours = os.path.realpath(journal.FOLDER)
    is_scratch = path.startswith((*SCRATCH, *CACHES, ours)) or path.endswith((".pyc", ".lock")) or "__pycache__" in path
    return None if is_scratch else path


def _on_event(event: str, args: tuple[Any, ...]) -> None:
    if event == "open" and "tfevents" in str(args[0]) and os.getpid() == state.pid:  # from a thread of TensorBoard
        journal.put("board", path=os.path.realpath(os.fsdecode(args[0])))
    if event not in EVENTS or not state.is_here():
        return
    state.is_busy = True
    try:
        _note(event, args, callsite(2))
    except Exception:  # evidence is never worth a failure
        pass
    finally:
        state.is_busy = False


def _note(event: str, args: tuple[Any, ...], site: str) -> None:
    if site == UNKNOWN:
        return
    if event == "open":
        path, mode, flags = _path(args[0]), args[1] or "", args[2] or 0
        appends = bool(flags & os.O_APPEND) or mode.startswith("a")
        if path is not None and not flags & os.O_EXCL and (appends or flags & os.O_TRUNC):
            journal.put("write", path=path, appends=appends, site=site, serial=state.serial)
    elif event == "os.mkdir":
        path = _path(args[0])
        if path is not None and "mkdtemp" not in library_functions(3):
            journal.put("mkdir", path=path, site=site)
    elif event in {"os.rename", "shutil.copyfile"}:
        kind = "rename" if event == "os.rename" else "write"
        journal.put(kind, path=_path(args[1]), source=_path(args[0]), appends=False, site=site, serial=state.serial)
    else:
        host = str(args[0])
        if host not in {"localhost", "127.0.0.1", "None", os.uname().nodename}:
            journal.put("net", url=host, site=site, serial=state.serial)


class _Tee:
    """A standard stream whose numbers are noted."""

    def __init__(self, stream: Any) -> None:
        self.__dict__["_stream"] = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._stream, name, value)

    def write(self, text: str) -> Any:
        """Write, and note the line if it has a number."""
        has_number = journal.rank is not None and any(letter.isdigit() for letter in text)
        if has_number and state.prints < MOST_PRINTS and os.getpid() == state.pid:
            state.prints += 1
            state.is_busy = True
            journal.put("print", text=text[:400], site=callsite(2))
            state.is_busy = False
        return self._stream.write(text)


def put_lines() -> None:
    """Write the lines that were run so far."""
    state.is_busy = True
    files = {os.path.realpath(name): sorted(seen) for name, seen in list(state.lines.items())}
    first = {f"{os.path.realpath(name)}:{line}": at for (name, line), at in list(state.first.items())}
    journal.put("lines", files=files, first=first)
    state.is_busy = False


def _put_lines_of_parent() -> None:
    """A process that started ranks leaves its lines too: what it did, it did before them."""
    if journal.rank is None and state.lines and os.getpid() == state.pid:
        put_lines()


def _after_fork() -> None:
    """Start again in a forked process, which may be a rank."""
    state.__init__()


def trace_lines() -> None:
    """Trace the lines of the script from here on: earlier, the trace would make the import of torch slow."""
    frame = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            frame.f_trace = _trace_line
        frame = frame.f_back
    sys.settrace(_trace_call)


def install() -> None:
    """Start to listen."""
    atexit.register(_put_lines_of_parent)
    sys.addaudithook(_on_event)
    sys.stdout = _Tee(sys.stdout)
    sys.stderr = _Tee(sys.stderr)
    os.register_at_fork(after_in_child=_after_fork)
