"""Published files are downloaded once: resumed when broken off, checked, unpacked beside and renamed; others wait."""

import fcntl
import http.client
import os
import shutil
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from paceline.core.errors import DataError
from paceline.core.units import size
from paceline.data.checksum import md5_of, unreadable
from paceline.data.sources.known import Known, Remote, describe

CHUNK = 1 << 18
TRIES = 5
"""How often a broken connection is taken up again before giving up."""
TIMEOUT_SECONDS = 30.0
HTTP_PARTIAL, HTTP_RANGE_PAST_END = 206, 416
REFUSED = range(400, 500)

Progress = Callable[[str, int, int | None], None]
"""Told the file, the bytes that are there and the bytes that it will have (None when the server does not say)."""


def fetch(known: Known, data_dir: Path, progress: Progress) -> Path:
    """Get all files of a data set and return its folder.

    Any number of processes may call it: one downloads, the others wait for it and find everything there.
    """
    home = known.home(data_dir)
    if any(remote.url is None for remote in known.remotes) or not known.remotes:
        raise known.missing(data_dir)
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise unreadable(home, cause) from cause
    with only_one(home / ".fetch.lock"):
        for remote in known.remotes:
            if not is_complete(remote, home):
                archive = download(remote, home, progress)
                unpack(remote, archive, home)
    return home


def is_complete(remote: Remote, home: Path) -> bool:
    """Tell whether a file was fetched before: unpacked folders appear whole or not at all."""
    if remote.unpacks_to is not None:
        return _unpacked_mark(remote, home).exists() and (home / remote.unpacks_to).exists()
    path = home / remote.file
    return path.exists() and (remote.md5 is None or md5_of(path) == remote.md5)


@contextmanager
def only_one(lock: Path) -> Iterator[None]:
    """Let one process in at a time. The system drops the lock of a process that dies, so a stale file cannot block."""
    with lock.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def download(remote: Remote, home: Path, progress: Progress) -> Path:
    """Return the file, taken from `home` when it is there and right, else downloaded and checked."""
    path = home / remote.file
    if path.exists():
        if remote.md5 is None or md5_of(path) == remote.md5:
            return path
        path.unlink()
    partial = path.with_name(path.name + ".partial")
    resumed = partial.exists()
    _download_resuming(remote, partial, progress)
    if remote.md5 is not None and (found := md5_of(partial)) != remote.md5:
        partial.unlink()
        if resumed:  # what an earlier call left may have been damaged
            return download(remote, home, progress)
        raise DataError(
            f"{remote.url} gave a file with md5 {found}, expected {remote.md5}; it was removed",
            hint=f"try again; or put {describe(remote)} into {home}",
        )
    partial.replace(path)
    return path


def _download_resuming(remote: Remote, partial: Path, progress: Progress) -> None:
    """Download, going on where a broken connection stopped, now or in an earlier call."""
    problem: Exception | None = None
    for _ in range(TRIES):
        try:
            _download_rest(remote, partial, progress)
        except urllib.error.HTTPError as cause:
            if cause.code == HTTP_RANGE_PAST_END:
                partial.unlink(missing_ok=True)
            elif cause.code in REFUSED:
                raise _no_download(remote, partial, cause) from cause
            problem = cause
        except (OSError, http.client.HTTPException, _CutOffError) as cause:
            problem = cause
        else:
            return
    assert problem is not None
    raise _no_download(remote, partial, problem) from problem


class _CutOffError(Exception):
    """The connection ended before the whole file had come."""


def _download_rest(remote: Remote, partial: Path, progress: Progress) -> None:
    assert remote.url is not None
    have = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(remote.url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
        if answer.status != HTTP_PARTIAL:
            have = 0  # the server sends all of it again
        length = answer.headers.get("Content-Length")
        total = None if length is None else have + int(length)
        with partial.open("ab" if have else "wb") as file:
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                have += len(chunk)
                progress(remote.file, have, total)
            file.flush()
            os.fsync(file.fileno())
    if total is not None and have < total:
        raise _CutOffError(f"it ended after {size(have)} of {size(total)}")


def _no_download(remote: Remote, partial: Path, cause: Exception) -> DataError:
    reason = cause.reason if isinstance(cause, urllib.error.URLError) else cause
    kept = f"; {size(partial.stat().st_size)} are kept and will be continued" if partial.exists() else ""
    return DataError(
        f"{remote.url} cannot be downloaded: {reason}{kept}",
        hint=f"try again; without a network, put {describe(remote)} into {partial.parent}",
    )


def unpack(remote: Remote, archive: Path, home: Path) -> None:
    """Unpack beside and rename, so that a folder is there as a whole or not at all."""
    if remote.unpacks_to is None:
        return
    scratch = home / f".unpacking-{remote.file}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
    except (tarfile.TarError, EOFError, OSError) as cause:
        shutil.rmtree(scratch, ignore_errors=True)
        raise DataError(
            f"{archive} cannot be unpacked: {cause}", hint=f"remove it and try again: rm {archive}"
        ) from cause
    for entry in sorted(scratch.iterdir()):
        target = home / entry.name
        if target.is_dir():
            shutil.rmtree(target)
        entry.replace(target)
    scratch.rmdir()
    _unpacked_mark(remote, home).write_text(f"{remote.md5}\n")


def _unpacked_mark(remote: Remote, home: Path) -> Path:
    """Return the file that says that an archive was unpacked completely."""
    return home / f".unpacked-{remote.file}"
