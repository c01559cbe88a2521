"""Seals any folder with a manifest, and checks folders that have one: checkpoints of runs, and sealed ones."""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.errors import CheckpointError
from paceline.records.manifest import (
    CHECKSUM,
    MANIFEST,
    file_facts,
    file_problem,
    has_manifest,
    read_manifest,
    write_manifest,
)
from paceline.records.tensor_hash import hash_text, no_sums, sum_words

SEALED = "sealed"
SUFFIX = ".safetensors"
ELEMENTS = 1 << 22
"""Elements that are hashed at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """What the check of a folder has found."""

    folder: Path
    num_files: int = 0
    num_bytes: int = 0
    num_tensors: int = 0
    problems: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()
    """Files that are not in the manifest."""


def seal_folder(folder: Path, *, replace: bool = False) -> CheckResult:
    """Write a manifest with the sha256 of every file and the hash of every tensor of safetensors files."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder")
    if has_manifest(folder) and (not replace or read_manifest(folder).get("format") != SEALED):
        again = "; --replace writes a new manifest" if read_manifest(folder).get("format") == SEALED else ""
        raise CheckpointError(f"{folder} has a manifest already", hint=f"to check it: paceline check {folder}{again}")
    names = list(_files(folder))
    if not names:
        raise CheckpointError(f"{folder} has no files to seal")
    facts = {name: file_facts(folder / name) for name in names}
    tensors = {name: tensor_hashes(folder / name) for name in names if name.endswith(SUFFIX)}
    manifest = {"format": SEALED, "time": time.time()}
    manifest |= {"files": {name: each.as_dict() for name, each in facts.items()}, "tensors": tensors}
    write_manifest(folder, manifest)
    return _result(folder, manifest)


def check_sealed(folder: Path) -> CheckResult:
    """Read every file of a folder with a manifest, and return what has changed, with the names of tensors."""
    try:
        manifest = read_manifest(folder)
    except CheckpointError as problem:
        return CheckResult(folder=folder, problems=(problem.message,))
    problems = []
    for name in manifest["files"]:
        problem = file_problem(folder, manifest, name)
        if problem is not None:
            changed = _changed_tensors(folder / name, name, manifest)
            problems.append(f"{name} {problem}" + (f": {', '.join(changed)}" if changed else ""))
    extra = tuple(name for name in _files(folder) if name not in manifest["files"])
    return _result(folder, manifest, tuple(problems), extra)


def tensor_hashes(path: Path) -> dict[str, Any]:
    """Return type, shape and hash of the tensors of a safetensors file."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header: dict[str, Any] = json.loads(file.read(length)) if length <= path.stat().st_size else {"": None}
        data = np.memmap(path, dtype=np.uint8, mode="r", offset=8 + length) if path.stat().st_size > 8 + length else []
        return {
            name: {"dtype": each["dtype"], "shape": each["shape"], "hash": _hash(data, each)}
            for name, each in header.items()
            if name != "__metadata__"
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as cause:
        raise CheckpointError(f"{path} is not a safetensors file, or is damaged") from cause


def _hash(data: Any, entry: Mapping[str, Any]) -> str:
    start, stop = entry["data_offsets"]
    num = int(np.prod(entry["shape"], dtype=np.int64))
    if stop > len(data) or (num and (stop - start) % num):
        raise ValueError("data_offsets do not fit the shape")
    width, total = (stop - start) // max(num, 1), no_sums()
    for first in range(0, num, ELEMENTS):
        piece = np.array(data[start + first * width : min(stop, start + (first + ELEMENTS) * width)])
        total += sum_words(piece, element_bytes=width, first=first)
    return hash_text(total)


def _changed_tensors(path: Path, name: str, manifest: Mapping[str, Any]) -> list[str]:
    """Return the tensors of a damaged file whose contents have changed, as far as the file can be read."""
    parts = manifest.get("parts", {}).values()
    known: dict[str, Any] = next((part["tensors"] for part in parts if part["files"] == [name]), {})
    known = known or manifest.get("tensors", {}).get(name, {})
    try:
        found = tensor_hashes(path) if known else {}
    except CheckpointError:
        return []
    return [key for key in known if key in found and found[key]["hash"] != known[key]["hash"]]


def _files(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and name not in {MANIFEST, CHECKSUM}:
            yield name


def _result(
    folder: Path, manifest: Mapping[str, Any], problems: tuple[str, ...] = (), extra: tuple[str, ...] = ()
) -> CheckResult:
    parts = [part["tensors"] for part in manifest.get("parts", {}).values()]
    return CheckResult(
        folder=folder,
        num_files=len(manifest["files"]),
        num_bytes=sum(each["bytes"] for each in manifest["files"].values()),
        num_tensors=sum(len(tensors) for tensors in [*parts, *manifest.get("tensors", {}).values()]),
        problems=problems,
        extra=extra,
    )
