"""Checkpoints: hashed and written atomically, verified when read; a resume uses the newest intact one."""

import errno
import hashlib
import io
import json
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, cast

import torch

from paceline.core.errors import CheckpointError
from paceline.core.units import size
from paceline.engine.capture import map_tensors
from paceline.records.folder import checkpoint_name, checkpoint_step, list_checkpoints
from paceline.records.old_keys import rename_old_keys
from paceline.records.writer import replacing, write_json

FORMAT = 1


class Checkpoints:
    """The checkpoints of one run: step-….pt with a manifest each, whose newest says which one is the best.

    The files `last` and `best` repeat that for other programs, and for `best` in folders of earlier versions.
    """

    def __init__(self, folder: Path, *, keep: int) -> None:
        self.folder = folder
        self._keep = keep

    def save(self, state: dict[str, Any], *, step: int, world_size: int, best_step: int | None) -> Path:
        """Write a checkpoint; once it is safely on disk, update `last` and `best` and remove old ones.

        `best_step` is the step of the best checkpoint so far, possibly this one; None if nothing was evaluated.
        """
        path = self._path(step)
        try:
            with replacing(path) as scratch, _HashingFile(scratch) as file:
                torch.save(state, cast("IO[bytes]", file))
                file.raise_if_failed()
            manifest = {"file": path.name, "sha256": file.hexdigest(), "bytes": file.written, "step": step}
            manifest |= {"world_size": world_size, "format": FORMAT, "time": time.time(), "best_step": best_step}
            write_json(_manifest(path), manifest)
            for name in ("last", "best") if best_step == step else ("last",):
                self._point(name, path)
        except (OSError, RuntimeError) as cause:
            raise _cannot_save(path, cause) from cause
        self._prune(step)
        return path

    def newest_good(self, warn: Callable[[str], None]) -> tuple[dict[str, Any], Path]:
        """Return the newest intact checkpoint, memory-mapped, and warn about newer damaged ones."""
        paths = self._all()
        for path in reversed(paths):
            try:
                return load_checkpoint(path, mapped=True), path
            except CheckpointError as problem:
                warn(f"{problem.message}; trying the previous checkpoint")
        found = "all are damaged" if paths else "none was saved"
        raise CheckpointError(
            f"{self.folder} has no usable checkpoint: {found}",
            hint="start the run again without --resume",
        )

    def named(self, name: str) -> Path:
        """Return the checkpoint that `best`, `last` or a file name stands for."""
        found = {"best": self._best(), "last": self._last()}.get(name, self.folder / name)
        if found is not None and found.is_file():
            return found
        known = [each for each, path in (("best", self._best()), ("last", self._last())) if path is not None]
        known += [path.name for path in self._all()]
        hint = f"available: {', '.join(known)}" if known else "the run was stopped before it saved a checkpoint"
        raise CheckpointError(f"{self.folder} has no checkpoint {name}", hint=hint)

    def _path(self, step: int) -> Path:
        return self.folder / checkpoint_name(step)

    def _all(self) -> list[Path]:
        return list_checkpoints(self.folder)

    def _last(self) -> Path | None:
        """Return the newest checkpoint with a readable manifest."""
        return next((path for path in reversed(self._all()) if _has_manifest(path)), None)

    def _best(self) -> Path | None:
        """Return the best checkpoint, as the newest manifest says; in a folder of earlier versions, the file `best`."""
        last, pointer = self._last(), self.folder / "best"
        manifest = {} if last is None else _read_manifest(last)
        if "best_step" in manifest:
            return None if manifest["best_step"] is None else self._path(manifest["best_step"])
        return self.folder / pointer.read_text(encoding="utf-8").strip() if pointer.is_file() else None

    def _point(self, name: str, path: Path) -> None:
        with replacing(self.folder / name) as scratch:
            scratch.write_text(path.name + "\n", encoding="utf-8")

    def _prune(self, step: int) -> None:
        """Remove all but the best and the newest few; ones after this step, which a resume found damaged, too."""
        paths = self._all()
        later = [path for path in paths if checkpoint_step(path) > step]
        for path in later:
            _remove(path)
        best = self._best()
        for path in paths[: len(paths) - len(later)][: -self._keep]:
            if path != best:
                _remove(path)


class BackgroundSaver:
    """Writes checkpoints in the background while training continues: one at a time, from a copy of the state."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[Path] | None = None

    def save(self, state: dict[str, Any], **facts: Any) -> None:
        """Copy the state and return; a failure of the previous save is raised here."""
        self.wait()
        copied = map_tensors(state, lambda tensor: tensor.detach().to("cpu", copy=True))
        self._pending = self._thread.submit(self._checkpoints.save, copied, **facts)

    def wait(self) -> None:
        """Wait until the pending save is on disk."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Finish the last save and end the thread."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()


def load_checkpoint(path: Path, *, mapped: bool = False) -> dict[str, Any]:
    """Read a checkpoint after verifying its checksum. Runs no code from the file.

    Tensors of a mapped checkpoint stay on disk until they are accessed.
    """
    manifest = _read_manifest(path)
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as cause:
        raise CheckpointError(f"cannot read {path}: {cause.strerror}") from cause
    if digest.hexdigest() != manifest.get("sha256"):
        short = path.stat().st_size != manifest.get("bytes")
        problem = "is cut short or has grown" if short else "has changed since it was written"
        raise CheckpointError(f"{path} is damaged: it {problem} (sha256 differs from {_manifest(path).name})")
    if manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path} has format {manifest.get('format')}, this Paceline reads format {FORMAT}")
    state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    if "progress" in state:  # its scores are stored as records
        state["progress"] = {
            name: rename_old_keys(value) if isinstance(value, dict) else value
            for name, value in state["progress"].items()
        }
    return state


class _HashingFile(io.RawIOBase):
    """A file that hashes what is written to it, and keeps the error that torch's writer would hide."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._digest = hashlib.sha256()
        self._file: io.FileIO
        self._error: OSError | None = None
        self.written = 0

    def __enter__(self) -> "_HashingFile":
        self._file = self._path.open("wb", buffering=0)
        return self

    def __exit__(self, *_failure: object) -> None:
        self._file.close()

    def write(self, block: Any) -> int:
        view = memoryview(block).cast("B")
        try:
            done = 0
            while done < len(view):
                done += self._file.write(view[done:])
        except OSError as cause:
            self._error = cause
            raise
        self._digest.update(view)
        self.written += len(view)
        return len(view)

    def flush(self) -> None:
        self._file.flush()

    def hexdigest(self) -> str:
        return self._digest.hexdigest()

    def raise_if_failed(self) -> None:
        if self._error is not None:
            raise self._error


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    _manifest(path).unlink(missing_ok=True)


def _has_manifest(path: Path) -> bool:
    try:
        return bool(_read_manifest(path))
    except CheckpointError:
        return False


def _manifest(path: Path) -> Path:
    return path.with_suffix(".json")


def _read_manifest(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist")
    try:
        return json.loads(_manifest(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as cause:
        raise CheckpointError(
            f"{path} cannot be trusted: its manifest {_manifest(path).name} is missing or torn"
        ) from cause


def _cannot_save(path: Path, cause: Exception) -> CheckpointError:
    """Return the reason why a checkpoint could not be written; torch wraps a full disk in a RuntimeError."""
    root = cause if isinstance(cause, OSError) else cause.__context__
    if isinstance(root, OSError) and root.errno in {errno.ENOSPC, errno.EDQUOT}:
        free = size(shutil.disk_usage(path.parent).free)
        return CheckpointError(
            f"the disk is full: {path} needs more than the {free} available; earlier checkpoints are intact",
            hint="free some space, then resume; or use a smaller --keep, or another --runs-dir",
        )
    return CheckpointError(f"{path} could not be written: {cause}; earlier checkpoints are intact")
