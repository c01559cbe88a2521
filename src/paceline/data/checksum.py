"""Whether a file is the one that was published: its md5, and what to say when it is not."""

import hashlib
from pathlib import Path

from paceline.core.errors import DataError


def md5_of(path: Path) -> str:
    """Return the md5 of a file as 32 hexadecimal digits."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except OSError as cause:
        raise unreadable(path, cause) from cause


def require_md5(path: Path, md5: str) -> None:
    """Refuse a file that differs from the published one."""
    found = md5_of(path)
    if found != md5:
        raise DataError(
            f"{path} is damaged or another file: its md5 is {found}, expected {md5}",
            hint=f"remove it and fetch it again: rm {path}",
        )


def unreadable(path: Path, cause: OSError) -> DataError:
    """Return the error for a file or folder that the system does not let us read."""
    hint = (
        f"check the permissions: ls -ld {path}" if isinstance(cause, PermissionError) else f"look at it: ls -l {path}"
    )
    return DataError(f"{path} cannot be read: {cause.strerror or cause}", hint=hint)
