"""Lines of the script: the innermost frames that belong to no library."""

import os
import sys
import sysconfig
from types import FrameType

_PATHS = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARIES = tuple(
    os.path.realpath(path) + os.sep
    for path in (*_PATHS, os.path.join(sys.base_prefix, "lib"), os.path.join(sys.prefix, "bin"), _OURS)
)
UNKNOWN = "?"
_known: dict[str, bool] = {}


def is_users(path: str) -> bool:
    """Tell whether a file is the user's own."""
    found = _known.get(path)
    if found is None:
        full = os.path.realpath(path)
        in_library = full.startswith(_LIBRARIES) or f"{os.sep}site-packages{os.sep}" in full
        found = _known[path] = not path.startswith("<") and not in_library and "paceline" + os.sep not in _tail(full)
    return found


def _tail(path: str) -> str:
    """Return the part of a path that says whether it belongs to our attached code."""
    return path if f"{os.sep}attached{os.sep}paceline_" in path else ""


def callsite(skip: int = 1) -> str:
    """Return file:line of the innermost line of the script; "?" if the script is not on the stack."""
    frames = callsites(skip + 1, most=1)
    return frames[0] if frames else UNKNOWN


def callsites(skip: int = 1, *, most: int = 12) -> list[str]:
    """Return the lines of the script on the stack, the innermost first."""
    return lines_of(sys._getframe(skip), most=most)


def lines_of(frame: FrameType | None, *, most: int = 12) -> list[str]:
    """Return the lines of the script at and above a frame."""
    found: list[str] = []
    while frame is not None and len(found) < most:
        if is_users(frame.f_code.co_filename):
            found.append(f"{os.path.realpath(frame.f_code.co_filename)}:{frame.f_lineno}")
        frame = frame.f_back
    return found


def library_functions(skip: int = 1, *, most: int = 10) -> list[str]:
    """Return the names of the library functions between the script and the caller."""
    frame, found = sys._getframe(skip), []
    while frame is not None and not is_users(frame.f_code.co_filename) and len(found) < most:
        found.append(frame.f_code.co_name)
        frame = frame.f_back
    return found
