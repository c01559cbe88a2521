"""Files of data sets: checksums, and the error for files that cannot be read."""

import errno
import hashlib
import os
import stat
from pathlib import Path

from paceline.core.errors import DataError


def unreadable_file(path: Path, cause: OSError) -> DataError:
    """Return the error that names the file or folder, the system's reason, and a command to inspect it."""
    hint = (
        f"check the permissions: ls -ld {path}"
        if isinstance(cause, PermissionError)
        else f"check the file: ls -l {path}"
    )
    return DataError(f"{path} cannot be read: {cause.strerror or cause}", hint=hint)


def read_regular(path: Path) -> bytes:
    """Return the content of a file; a FIFO would block, a device may never end, so both raise OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO without a writer blocks otherwise
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is a folder, FIFO or device, not a file")
        return file.read()


def md5_of(path: Path) -> str:
    """Return the md5 of a file as 32 hexadecimal digits."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except OSError as cause:
        raise unreadable_file(path, cause) from cause


def require_md5(path: Path, md5: str) -> None:
    """Refuse a file that differs from the published one."""
    found = md5_of(path)
    if found != md5:
        raise DataError(
            f"{path} is damaged or another file: its md5 is {found}, expected {md5}",
            hint=f"remove it and fetch it again: rm {path}",
        )
