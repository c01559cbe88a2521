"""Downloads published files once: resumes broken downloads, checks md5, unpacks and renames; other processes wait."""

import http.client
import os
import shutil
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from paceline.core.errors import DataError
from paceline.core.units import size
from paceline.data.source_files import md5_of, unreadable_file
from paceline.data.sources.published import PublishedSet, Remote, describe
from paceline.records.writer import locked

CHUNK = 1 << 18
TRIES = 5
"""Maximum connections per download."""
TIMEOUT_SECONDS = 30.0
HTTP_PARTIAL, HTTP_RANGE_PAST_END = 206, 416
REFUSED = range(400, 500)

Progress = Callable[[str, int, int | None], None]
"""Called with the file, the bytes so far and the total bytes (None if the server does not send a length)."""


def fetch_files(published: PublishedSet, data_dir: Path, progress: Progress) -> Path:
    """Download all files of a data set and return its folder.

    Any number of processes may call it: one downloads, the others wait for it.
    """
    home = published.home(data_dir)
    if any(remote.url is None for remote in published.remotes) or not published.remotes:
        raise published.missing(data_dir)
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise unreadable_file(home, cause) from cause
    with locked(home / ".fetch.lock"):
        for remote in published.remotes:
            if not is_complete(remote, home):
                archive = download(remote, home, progress)
                unpack(remote, archive, home)
    return home


def is_complete(remote: Remote, home: Path) -> bool:
    """Tell whether a file was fetched before: unpacked folders appear complete or not at all."""
    if remote.unpacks_to is not None:
        return _unpacked_marker(remote, home).exists() and (home / remote.unpacks_to).exists()
    path = home / remote.file
    return path.exists() and (remote.md5 is None or md5_of(path) == remote.md5)


def download(remote: Remote, home: Path, progress: Progress) -> Path:
    """Return the file: the one in `home` if its md5 is right, else downloaded and checked."""
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
        if resumed:  # a file from an earlier call may have been damaged
            return download(remote, home, progress)
        raise DataError(
            f"{remote.url} has md5 {found}, expected {remote.md5}; it was removed",
            hint=f"try again; or put {describe(remote)} into {home}",
        )
    partial.replace(path)
    return path


def _download_resuming(remote: Remote, partial: Path, progress: Progress) -> None:
    """Download, resuming where a broken connection stopped, in this or an earlier call."""
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
    """The connection ended before the end of the file."""


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
    kept = f"; {size(partial.stat().st_size)} are kept; the next call resumes" if partial.exists() else ""
    return DataError(
        f"{remote.url} cannot be downloaded: {reason}{kept}",
        hint=f"try again; without a network, put {describe(remote)} into {partial.parent}",
    )


def unpack(remote: Remote, archive: Path, home: Path) -> None:
    """Unpack to a temporary folder and rename it, so that a folder appears complete or not at all."""
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
    _unpacked_marker(remote, home).write_text(f"{remote.md5}\n")


def _unpacked_marker(remote: Remote, home: Path) -> Path:
    """Return the marker file of an archive that was unpacked completely."""
    return home / f".unpacked-{remote.file}"
