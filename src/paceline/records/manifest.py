"""The manifest of a folder: the sha256 of every file, the hash of every tensor, and values that are no tensors.

`manifest.json` is protected by `manifest.sha256`, which `sha256sum --check` reads.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from paceline.core.errors import CheckpointError
from paceline.records.schema import Manifest, parse_as
from paceline.records.writer import replacing

MANIFEST, CHECKSUM = "manifest.json", "manifest.sha256"
PIECE = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class FileFacts:
    """What a manifest says about a file."""

    sha256: str
    num_bytes: int

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"sha256": self.sha256, "bytes": self.num_bytes}


def file_facts(path: Path) -> FileFacts:
    """Read a file, and return its size and sha256."""
    digest, num_bytes = hashlib.sha256(), 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(PIECE):
            digest.update(block)
            num_bytes += len(block)
    return FileFacts(sha256=digest.hexdigest(), num_bytes=num_bytes)


def write_manifest(folder: Path, values: Mapping[str, Any]) -> None:
    """Write the manifest and its checksum."""
    text = json.dumps(values, allow_nan=False) + "\n"
    for name, content in ((MANIFEST, text.encode()), (CHECKSUM, _checksum_line(text.encode()).encode())):
        with replacing(folder / name) as scratch:
            scratch.write_bytes(content)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a folder; raise CheckpointError if it is missing, damaged or not a manifest."""
    try:
        text, line = (folder / MANIFEST).read_bytes(), (folder / CHECKSUM).read_bytes()
    except OSError as cause:
        if not folder.is_dir():
            raise CheckpointError(f"{folder} does not exist") from cause
        missing = MANIFEST if not (folder / MANIFEST).is_file() else CHECKSUM
        raise CheckpointError(f"{folder} cannot be trusted: its {missing} is missing or unreadable") from cause
    if line != _checksum_line(text).encode():
        raise CheckpointError(f"{folder} is damaged: {MANIFEST} or {CHECKSUM} has changed since it was written")
    try:
        manifest = parse_as(Manifest, text)
        _check_names(manifest)
    except ValueError as cause:
        raise CheckpointError(f"{folder} cannot be read: {MANIFEST} is not a manifest of Paceline: {cause}") from cause
    return manifest


def has_manifest(folder: Path) -> bool:
    """Tell whether a folder has a manifest."""
    return (folder / MANIFEST).is_file()


def check_files(folder: Path, manifest: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise CheckpointError for the first of these files that is missing or has changed."""
    for name in names:
        problem = file_problem(folder, manifest, name)
        if problem is not None:
            raise CheckpointError(f"{folder} is damaged: {name} {problem}")


def file_problem(folder: Path, manifest: Mapping[str, Any], name: str) -> str | None:
    """Return what is wrong with a file of the manifest, or None."""
    expected = manifest["files"][name]
    try:
        found = (folder / name).stat()
        if not stat.S_ISREG(found.st_mode):
            return "is not a regular file"
        if found.st_size != expected["bytes"]:
            return "is cut short or has grown"
        facts = file_facts(folder / name)
    except FileNotFoundError:
        return "is missing"
    except OSError as cause:
        return f"cannot be read: {cause.strerror}"
    return None if facts.as_dict() == expected else "has changed since it was written (its sha256 differs)"


def _check_names(manifest: Mapping[str, Any]) -> None:
    """Raise ValueError if a file is outside the folder, or a part has files that are not listed."""
    for name in manifest["files"]:
        path = PurePosixPath(name)
        if not path.name or path.is_absolute() or ".." in path.parts or b"\0" in os.fsencode(name):
            raise ValueError(f"{name!r} is not the name of a file inside the folder")
    for part, held in manifest.get("parts", {}).items():
        if not held["files"] or not manifest["files"].keys() >= set(held["files"]):
            raise ValueError(f"the files of {part} are not listed")


def _checksum_line(manifest: bytes) -> str:
    return f"{hashlib.sha256(manifest).hexdigest()}  {MANIFEST}\n"
