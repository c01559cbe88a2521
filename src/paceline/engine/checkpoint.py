"""The checkpoints of a run: written atomically, verified when read; a resume uses the newest intact one."""

import errno
import os
import shutil
import socket
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch

from paceline.core.errors import CheckpointError, PacelineError
from paceline.core.units import size
from paceline.core.world import World
from paceline.engine.checkpoint_folder import (
    Captured,
    add_sums,
    check_folder,
    finish_folder,
    open_folder,
    write_shards,
)
from paceline.engine.old_checkpoint import check_old_checkpoint, old_manifest, read_old_checkpoint, read_old_manifest
from paceline.engine.saved_tensor import SavedTensor
from paceline.engine.state_tree import change_leaves
from paceline.parallel.team import Team
from paceline.records.folder import (
    REPLACED,
    checkpoint_name,
    checkpoint_step,
    leftover_checkpoints,
    list_checkpoints,
    replaced_checkpoints,
)
from paceline.records.manifest import read_manifest
from paceline.records.old_keys import rename_old_keys
from paceline.records.writer import Fence, replacing, sync_folder

NO_OTHERS = Team(World(), torch.device("cpu"))
"""The team of a process that reads or writes a checkpoint without other ranks."""


class Checkpoints:
    """The checkpoints of one run: a folder step-… each, with a manifest whose newest says which one is the best.

    The files `last` and `best` repeat that for other programs, and for `best` in folders of earlier versions.
    """

    def __init__(
        self, folder: Path, *, keep: int, fence: Fence = nullcontext, committed: Callable[[], None] = lambda: None
    ) -> None:
        self.folder = folder
        self._committed = committed
        self._keep = keep
        self._fence = fence

    def save(self, captured: Captured, team: Team, *, step: int, best_step: int | None) -> None:
        """Write a checkpoint; once it is safely on disk, update `last` and `best` and remove old ones.

        `best_step` is the step of the best checkpoint so far, possibly this one; None if nothing was evaluated.
        Collective: every rank must call it. Without shards only the lead writes.
        """
        if captured.is_sharded:
            self._save(captured, team, step=step, world_size=team.world.size, best_step=best_step)
        elif team.is_lead:
            self._save(captured, NO_OTHERS, step=step, world_size=team.world.size, best_step=best_step)

    def _save(self, captured: Captured, team: Team, **facts: Any) -> None:
        path = self.folder / checkpoint_name(facts["step"])
        scratch = team.from_lead(_scratch(path))
        try:
            self._write(captured, team, path, scratch, facts)
        except PacelineError:
            if team.is_lead:
                shutil.rmtree(scratch, ignore_errors=True)
            raise

    def _write(self, captured: Captured, team: Team, path: Path, scratch: Path, facts: dict[str, Any]) -> None:
        explained = _Explained(path, team)
        with explained:
            if team.is_lead:
                with self._fence():
                    self._clear_leftovers()
                    scratch.mkdir()
        explained.raise_for_all()
        written: Any = ({}, {})
        with explained:
            written = write_shards(scratch, captured, team)
        explained.raise_for_all()
        files = {name: found for own in team.gather(written[0]) for name, found in own.items()}
        hashes = add_sums(captured, written[1], team)
        with explained:
            if team.is_lead:
                finish_folder(scratch, captured, hashes, files, facts)
                self._commit(scratch, path, is_best=facts["best_step"] == facts["step"])
        explained.raise_for_all()

    def _commit(self, scratch: Path, path: Path, *, is_best: bool) -> None:
        """Move a finished checkpoint to its place, point to it, and remove old ones."""
        aside = _scratch(path, REPLACED)
        with self._fence():
            if path.exists():  # saved again after a resume from an earlier one; `recover` knows its name
                path.rename(aside)
            scratch.rename(path)
        sync_folder(self.folder)
        shutil.rmtree(aside, ignore_errors=True)
        for name in ("last", "best") if is_best else ("last",):
            self._point(name, path)
        self._prune(checkpoint_step(path))
        self._committed()

    def recover(self) -> None:
        """Give a checkpoint its name back if a kill left it without its replacement. Only the lead calls it."""
        for path, step in replaced_checkpoints(self.folder):
            if not (self.folder / checkpoint_name(step)).exists():
                path.rename(self.folder / checkpoint_name(step))

    def newest_good(self, team: Team, warn: Callable[[str], None]) -> tuple[dict[str, Any], Path]:
        """Return the newest intact checkpoint, with tensors that stay on disk, and warn about newer damaged ones.

        Every rank of the team checks some of the files. Collective: every rank of the team must call it.
        """
        paths = team.from_lead(self._all())
        for path in reversed(paths):
            try:
                return self.load(path, team), path
            except CheckpointError as problem:
                warn(f"{problem.message}; trying the previous checkpoint")
        found = "all are damaged" if paths else "none was saved"
        raise CheckpointError(
            f"{self.folder} has no usable checkpoint: {found}",
            hint="start the run again without --resume",
        )

    def load(self, path: Path, team: Team) -> dict[str, Any]:
        """Return a checkpoint after verifying it. Collective: every rank of the team must call it."""
        explained = _Explained(path, team)
        with explained:
            check_checkpoint(path, rank=team.world.rank, world_size=team.world.size)
        explained.raise_for_all()
        return open_checkpoint(path, is_checked=True)

    def are_seen_by_all(self, team: Team) -> bool:
        """Tell whether every rank sees the checkpoints that the lead sees. Collective: every rank must call it."""
        return not team.any(team.from_lead(self._all()) != self._all())

    def named(self, name: str) -> Path:
        """Return the checkpoint that `best`, `last` or a name stands for."""
        pointed = {"best": self._best(), "last": self._last()}
        found = pointed[name] if name in pointed else self.folder / name
        if found is not None and not found.exists():
            found = found.with_suffix("")  # the names of earlier versions ended in .pt
        if found is not None and found in self._all():
            return found
        known = [each for each, path in pointed.items() if path is not None]
        known += [path.name for path in self._all()]
        hint = f"available: {', '.join(known)}" if known else "the run was stopped before it saved a checkpoint"
        raise CheckpointError(f"{self.folder} has no checkpoint {name}", hint=hint)

    def _all(self) -> list[Path]:
        return list_checkpoints(self.folder)

    def _last(self) -> Path | None:
        """Return the newest checkpoint with a readable manifest."""
        return next((path for path in reversed(self._all()) if _manifest_of(path)), None)

    def _best(self) -> Path | None:
        """Return the best checkpoint, as the newest manifest says; in a folder of earlier versions, the file `best`."""
        last, pointer = self._last(), self.folder / "best"
        manifest = {} if last is None else _manifest_of(last)
        if "best_step" in manifest:
            step = manifest["best_step"]
            return next((path for path in reversed(self._all()) if checkpoint_step(path) == step), None)
        return self.folder / pointer.read_text(encoding="utf-8").strip() if pointer.is_file() else None

    def _point(self, name: str, path: Path) -> None:
        with replacing(self.folder / name, fence=self._fence) as scratch:
            scratch.write_text(path.name + "\n", encoding="utf-8")

    def _prune(self, step: int) -> None:
        """Remove all but the best and the newest few; ones after this step, which a resume found damaged, too.

        One that cannot be removed now is tried again after the next save.
        """
        paths = self._all()
        later = [path for path in paths if checkpoint_step(path) > step]
        for path in later:
            self._remove(path)
        best = self._best()
        for path in paths[: len(paths) - len(later)][: -self._keep]:
            if path != best:
                self._remove(path)

    def _remove(self, path: Path) -> None:
        """Remove a checkpoint; one that is removed in part never has its name."""
        aside = _scratch(path, "old")
        with suppress(OSError), self._fence():
            if path.is_dir():
                path.rename(aside)
            else:
                path.unlink()
                old_manifest(path).unlink()
        shutil.rmtree(aside, ignore_errors=True)

    def _clear_leftovers(self) -> None:
        for path in leftover_checkpoints(self.folder):
            shutil.rmtree(path, ignore_errors=True)


def open_checkpoint(path: Path, *, is_checked: bool = False) -> dict[str, Any]:
    """Return the state of a checkpoint; tensors stay on disk until rows of them are read. Runs no code from the file.

    Unless `is_checked`, what is read is verified first.
    """
    read = open_folder if path.is_dir() else read_old_checkpoint
    state = read(path, is_checked=is_checked)
    if isinstance(state.get("progress"), dict):  # its scores are stored as records
        state["progress"] = {
            name: rename_old_keys(value) if isinstance(value, dict) else value
            for name, value in state["progress"].items()
        }
    return state


def check_checkpoint(path: Path, *, rank: int = 0, world_size: int = 1) -> None:
    """Raise CheckpointError if a checkpoint has changed; of several files, a rank checks some."""
    if path.is_dir():
        check_folder(path, rank=rank, world_size=world_size)
    elif rank == 0:
        check_old_checkpoint(path)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Return the state of a checkpoint with tensors that are mapped from its files, after verifying them all."""
    check_checkpoint(path)
    return change_leaves(open_checkpoint(path, is_checked=True), SavedTensor, SavedTensor.whole)


class _Explained:
    """Turns errors of any rank into one CheckpointError that every rank of a team raises."""

    def __init__(self, path: Path, team: Team) -> None:
        self._path, self._team = path, team
        self._problem: CheckpointError | None = None

    def __enter__(self) -> None:
        """Watch a block that may fail on this rank."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, CheckpointError):
            self._problem = error
        elif isinstance(error, OSError):
            self._problem = _cannot_save(self._path, error, self._team.world)
        return self._problem is not None

    def raise_for_all(self) -> None:
        """Raise the first rank's problem on every rank. Collective: every rank of the team must call it."""
        own = None if self._problem is None else (self._problem.message, self._problem.hint)
        found = next((each for each in self._team.gather(own) if each is not None), None)
        if found is not None:
            raise CheckpointError(found[0], hint=found[1])


def _scratch(path: Path, what: str = "new") -> Path:
    return path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.{what}.partial")


def _manifest_of(path: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint; empty if it is missing or damaged."""
    try:
        return read_manifest(path) if path.is_dir() else read_old_manifest(path)
    except CheckpointError:
        return {}


def _cannot_save(path: Path, cause: OSError, world: World) -> CheckpointError:
    """Return the reason why a checkpoint could not be written."""
    if cause.errno in {errno.ENOSPC, errno.EDQUOT}:
        free = size(shutil.disk_usage(path.parent).free)
        return CheckpointError(
            f"the disk is full: {path} needs more than the {free} available; earlier checkpoints are intact",
            hint="free some space, then resume; or use a smaller --keep, or another --runs-dir",
        )
    if cause.errno == errno.ENOENT and not world.is_lead:
        return CheckpointError(
            f"rank {world.rank} on {world.host} cannot write its shard: {path.parent} does not exist there",
            hint="with --mode fsdp, set --runs-dir to a folder that every rank can see",
        )
    return CheckpointError(f"{path} could not be written: {cause}; earlier checkpoints are intact")
