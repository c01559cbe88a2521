"""Checkpoints of earlier versions (format 1): one file written by torch.save, with a manifest beside it."""

from pathlib import Path
from typing import Any

import torch

from paceline.core.errors import CheckpointError
from paceline.records.manifest import file_facts
from paceline.records.schema import OldManifest, parse_as

FORMAT = 1


def read_old_checkpoint(path: Path, *, is_checked: bool = False) -> dict[str, Any]:
    """Return the state, mapped from the file. Runs no code from it."""
    if not is_checked:
        check_old_checkpoint(path)
    state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} is not a checkpoint: it holds a {type(state).__name__}")
    return state


def check_old_checkpoint(path: Path) -> None:
    """Raise CheckpointError if the file or its manifest has changed."""
    manifest = read_old_manifest(path)
    try:
        facts = file_facts(path)
    except OSError as cause:
        raise CheckpointError(f"cannot read {path}: {cause.strerror}") from cause
    if facts.sha256 != manifest.get("sha256"):
        short = facts.num_bytes != manifest.get("bytes")
        problem = "is cut short or has grown" if short else "has changed since it was written"
        raise CheckpointError(f"{path} is damaged: it {problem} (sha256 differs from {old_manifest(path).name})")
    if manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path} has format {manifest.get('format')}, which this Paceline does not read")


def old_manifest(path: Path) -> Path:
    """Return the manifest of a checkpoint file."""
    return path.with_suffix(".json")


def read_old_manifest(path: Path) -> dict[str, Any]:
    """Return the manifest; raise CheckpointError if it is missing or damaged."""
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist")
    try:
        return parse_as(OldManifest, old_manifest(path).read_bytes())
    except (OSError, ValueError) as cause:
        raise CheckpointError(
            f"{path} cannot be trusted: its manifest {old_manifest(path).name} is missing or damaged"
        ) from cause
