"""The user's own code: its hashes, the copies that a run folder keeps, and what has changed since a checkpoint."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from paceline.records.folder import RunFolder
from paceline.records.writer import replacing


def hash_code(files: Mapping[str, Path]) -> dict[str, str]:
    """Return the sha256 of each file."""
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}


def keep_code(folder: RunFolder, files: Mapping[str, Path]) -> None:
    """Copy the files into a run folder; earlier versions stay. Only the lead calls it."""
    for name, sha256 in hash_code(files).items():
        copy = folder.code(name, sha256)
        if not copy.exists():
            copy.parent.mkdir(exist_ok=True)
            with replacing(copy) as scratch:
                scratch.write_bytes(files[name].read_bytes())


def code_changes(folder: RunFolder, before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return a sentence for each file that differs from the version of a checkpoint."""
    sentences = []
    for name, sha256 in before.items():
        file = Path(name).expanduser()
        if name not in now and file.is_file():  # not imported in this process, or not yet
            now = {**now, **hash_code({name: file})}
        if now.get(name) == sha256:
            continue
        what = "has changed" if name in now else "is missing"
        copy = folder.code(name, sha256)
        compare = f"; to compare: diff {copy} {name}" if copy.exists() else ""
        sentences.append(f"{name} {what}: this checkpoint was trained with another version{compare}")
    return sentences
