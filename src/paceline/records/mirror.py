"""A run folder in an object store: what is copied there, in which order, and how it comes back."""

import json
import math
import os
import shutil
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from paceline.core.addresses import storage_address
from paceline.core.config import Config
from paceline.core.errors import RunError, StorageError
from paceline.core.messages import say
from paceline.records.attempt import choosing_run
from paceline.records.folder import (
    RunFolder,
    find_run,
    is_checkpoint_name,
    list_checkpoints,
    list_runs_below,
    make_inner,
    make_numbered,
)
from paceline.records.manifest import CHECKSUM, MANIFEST
from paceline.records.storage import Storage
from paceline.records.writer import write_json

CHECKPOINTS, CONFIG = RunFolder(Path()).checkpoints.name, RunFolder(Path()).config.name


def open_run(path: Path, runs_dir: Path) -> RunFolder:
    """Return the run of a path or name, or a local copy of a run in an object store."""
    address = storage_address(path)
    return find_run(path, runs_dir) if address is None else fetch_run(address, runs_dir)


def local_copy(path: Path, runs_dir: Path) -> Path:
    """Return the path, or that of a local copy of a run in an object store."""
    return path if storage_address(path) is None else open_run(path, runs_dir).path


def mirror_address(folder: RunFolder) -> str | None:
    """Return where a run is copied to; None if nowhere."""
    address = _read_mirror(folder).get("address")
    return None if address is None else str(address)


def choose_mirror(folder: RunFolder, upload: str) -> str:
    """Return where to copy a run below an address: the same place as before, or the first free number of its name.

    The settings are copied at once: a run of the same name on another machine then takes the next number.
    """
    address = mirror_address(folder)
    if address is None or not address.startswith(f"{upload.rstrip('/')}/"):
        parent = f"{upload.rstrip('/')}/{folder.path.parent.name}"
        taken = _numbers(Storage(parent).sizes())
        number = int(folder.path.name) if folder.path.name.isdigit() else 1
        address = f"{parent}/{max([number, *(each + 1 for each in taken)]):03d}"
        write_json(folder.mirror, {"address": address, "checkpoints": []})
        with suppress(StorageError):  # a store that refuses writes costs only the copy, and the first upload reports it
            Storage(address).put(folder.config, CONFIG)
    return address


class Mirror:
    """The copy of one run in an object store. A checkpoint there is complete once it has its checksum."""

    def __init__(self, folder: RunFolder, storage: Storage) -> None:
        self._folder, self._storage = folder, storage
        self._there: set[str] | None = None
        """The complete checkpoints in the store."""
        self._own = {str(name) for name in _read_mirror(folder).get("checkpoints", ())}
        """The checkpoints of this run that may be in the store, whole or in part. It removes no others."""

    def update(self, *, ended: bool = False) -> None:
        """Copy what is new, and then remove checkpoints that the run had removed before.

        One that it removes during the copy stays until the next call: a checkpoint in the store may call it the best.
        """
        if self._there is None:
            self._there = complete_checkpoints(self._storage.sizes())
        paths = [path for path in list_checkpoints(self._folder.checkpoints) if path.is_dir()]
        before = {path.name for path in paths}
        self._note_own(before)
        for name in _record_files(self._folder, ended=ended):
            self._copy(name)
        for path in paths:
            if path.name not in self._there:
                self._copy_checkpoint(path)
        for name in ("last", "best"):
            self._copy(f"{CHECKPOINTS}/{name}")
        here = {path.name for path in list_checkpoints(self._folder.checkpoints)}
        if before & self._there and before & here <= self._there:
            self._remove(self._own - before - here)

    def _note_own(self, checkpoints: set[str]) -> None:
        """Record these checkpoints as copies of this run, also for its next attempt."""
        if not checkpoints <= self._own:
            self._own |= checkpoints
            write_json(self._folder.mirror, {"address": self._storage.address, "checkpoints": sorted(self._own)})

    def _copy(self, name: str) -> None:
        file = self._folder.path / name
        if file.is_file():
            self._storage.put(file, name)

    def _copy_checkpoint(self, path: Path) -> None:
        """Copy the files of a checkpoint, its checksum last, unless the run removes it meanwhile."""
        files = [file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()]
        if CHECKSUM not in files:  # the run removed it meanwhile
            return
        order = sorted(files, key=lambda name: (name == CHECKSUM, name == MANIFEST, name))
        try:
            for name in order:
                self._storage.put(path / name, f"{CHECKPOINTS}/{path.name}/{name}")
        except FileNotFoundError:
            return
        assert self._there is not None
        self._there.add(path.name)

    def _remove(self, gone: Iterable[str]) -> None:
        """Remove checkpoints, the checksum of each first."""
        for checkpoint in sorted(gone):
            names = list(self._storage.sizes(f"{CHECKPOINTS}/{checkpoint}"))
            self._storage.remove([name for name in names if name.endswith(f"/{CHECKSUM}")])
            self._storage.remove([name for name in names if not name.endswith(f"/{CHECKSUM}")])
            assert self._there is not None
            self._there.discard(checkpoint)
            self._own.discard(checkpoint)


def complete_checkpoints(names: Iterable[str]) -> set[str]:
    """Return the checkpoints among the files of a run in an object store that were copied completely."""
    parts = [PurePosixPath(name).parts for name in names]
    found = (each[1] for each in parts if len(each) == 3 and (each[0], each[2]) == (CHECKPOINTS, CHECKSUM))
    return {name for name in found if is_checkpoint_name(name)}


def fetch_newest(config: Config) -> None:
    """Copy the newest run of the name that has a checkpoint in the object store, if there is no run of it here."""
    assert config.upload is not None
    parent = config.runs_dir / config.run_name
    if list_runs_below(parent):
        return
    address = f"{config.upload.rstrip('/')}/{config.run_name}"
    numbers = _numbers(name for name in Storage(address).sizes() if name.endswith(f"/{CHECKSUM}"))
    if numbers:
        fetch_run(f"{address}/{max(numbers):03d}", config.runs_dir)


def fetch_run(address: str, runs_dir: Path) -> RunFolder:
    """Return a local copy of a run in an object store, with the checkpoints that are complete there."""
    storage = Storage(address)
    sizes = storage.sizes()
    if CONFIG not in sizes:
        numbers = _numbers(name for name in sizes if name.endswith(f"/{CONFIG}"))
        if not numbers:
            raise RunError(f"{address} is not a run: it has no {CONFIG}", hint="give s3://BUCKET/…/NAME/001")
        return fetch_run(f"{address}/{max(numbers):03d}", runs_dir)
    name = PurePosixPath(address).parts[-2]
    parent = runs_dir / name
    parent.mkdir(parents=True, exist_ok=True)
    with choosing_run(parent, patience=math.inf):  # another rank may be copying it
        held = next((run for run in list_runs_below(parent) if mirror_address(run) == address), None)
        missing = complete_checkpoints(sizes)
        if held is not None:
            if max(missing, default="") <= max((path.name for path in list_checkpoints(held.checkpoints)), default=""):
                return held
            missing -= {path.name for path in list_checkpoints(held.checkpoints)}
        folder = held or RunFolder(_free_folder(parent, address))
        say(f"copying {address} to {folder.path}")
        _fetch(storage, sizes, folder, missing)
    return folder


def _free_folder(parent: Path, address: str) -> Path:
    """Create the folder of the same number, or the next one if there is another run of that number."""
    wanted = parent / PurePosixPath(address).name
    try:
        wanted.mkdir()
    except FileExistsError:
        return make_numbered(parent)
    return wanted


def _fetch(storage: Storage, sizes: dict[str, int], folder: RunFolder, checkpoints: set[str]) -> None:
    """Copy the records of a run and these checkpoints; the file that makes it a run comes last."""
    make_inner(folder)
    for checkpoint in sorted(checkpoints):
        scratch = folder.checkpoints / f".{checkpoint}.{socket.gethostname()}.{os.getpid()}.fetched.partial"
        prefix = f"{CHECKPOINTS}/{checkpoint}/"
        try:
            for name in sizes:
                if name.startswith(prefix):
                    _get(storage, name, scratch / name.removeprefix(prefix))
        except StorageError:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        scratch.rename(folder.checkpoints / checkpoint)
    records = [name for name in sizes if name.count("/") < 2 or not name.startswith(f"{CHECKPOINTS}/")]
    for name in sorted(records, key=lambda each: each == CONFIG):
        _get(storage, name, folder.path / name)
    own = complete_checkpoints(sizes)
    write_json(folder.mirror, {"address": storage.address, "checkpoints": sorted(own)})


def _get(storage: Storage, name: str, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    storage.get(name, file)


def _read_mirror(folder: RunFolder) -> dict[str, Any]:
    """Return where a run is copied to, and which of its checkpoints may be there; nothing if it is not copied."""
    try:
        found = json.loads(folder.mirror.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _record_files(folder: RunFolder, *, ended: bool) -> list[str]:
    """Return the files of a run besides its checkpoints; the state of the lead only when it no longer changes."""
    skipped = {CHECKPOINTS, folder.rank(0).parent.name, folder.attempt.name, folder.mirror.name}
    files = [file.relative_to(folder.path) for file in folder.path.rglob("*") if file.is_file()]
    names = [each.as_posix() for each in files if each.parts[0] not in skipped and not each.name.startswith(".")]
    return names + ([folder.rank(0).relative_to(folder.path).as_posix()] if ended else [])


def _numbers(names: Iterable[str]) -> list[int]:
    firsts = {PurePosixPath(name).parts[0] for name in names if name}
    return [int(first) for first in firsts if first.isdigit()]
