"""One checkpoint as a folder (format 2): a file of tensors for each part, or a shard of it per rank, and a manifest."""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from paceline.core.errors import CheckpointError
from paceline.engine.saved_tensor import SavedTensor
from paceline.engine.state_tree import Parts, join_state, split_state
from paceline.engine.tensor_files import Piece, piece_of, write_tensors
from paceline.parallel.team import Team
from paceline.records.manifest import FileFacts, check_files, read_manifest, write_manifest
from paceline.records.tensor_hash import NUM_SUMS, Sums, hash_text
from paceline.records.writer import sync_folder

FORMAT = 2
HASH = "multilinear-128"
"""The kind of hash of a tensor: records/tensor_hash.py."""
DTYPES = {str(each).removeprefix("torch."): each for each in vars(torch).values() if isinstance(each, torch.dtype)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Captured:
    """What this rank has of the state of a run."""

    parts: Mapping[str, Mapping[str, Piece]]
    plain: dict[str, Any]

    @classmethod
    def of(cls, state: dict[str, Any]) -> "Captured":
        """Return the pieces of the tensors of a state, without a copy."""
        parts, plain = split_state(state)
        pieces = {part: {name: piece_of(value) for name, value in found.items()} for part, found in parts.items()}
        return cls(parts=pieces, plain=plain)

    @property
    def is_sharded(self) -> bool:
        """Tell whether every rank has to write."""
        return any(_is_split(pieces) for pieces in self.parts.values())

    def owned(self, part: str, *, is_lead: bool) -> dict[str, Piece]:
        """Return what this rank writes of a part: its shards, and on the lead all that is not sharded."""
        return {name: piece for name, piece in self.parts[part].items() if piece.is_shard or is_lead}

    def copied(self, copy: Callable[[str, Tensor], Tensor], *, is_lead: bool) -> "Captured":
        """Return the same with every tensor copied that this rank writes; `copy` gets a name for each."""
        parts = {
            part: {
                name: replace(piece, local=copy(f"{part}/{name}", piece.local)) if piece.is_shard or is_lead else piece
                for name, piece in pieces.items()
            }
            for part, pieces in self.parts.items()
        }
        return replace(self, parts=parts)


def write_shards(folder: Path, captured: Captured, team: Team) -> tuple[dict[str, FileFacts], dict[str, Sums]]:
    """Write the files of this rank; return their facts, and the hash sums of this rank by part and name."""
    files: dict[str, FileFacts] = {}
    sums: dict[str, Sums] = {}
    for part, pieces in captured.parts.items():
        is_split = _is_split(pieces)
        if not (is_split or team.is_lead):
            continue
        name = _file_names(part, team.world.size if is_split else 1)[team.world.rank]
        (folder / name).parent.mkdir(exist_ok=True)
        files[name], own = write_tensors(folder / name, captured.owned(part, is_lead=team.is_lead))
        sync_folder((folder / name).parent)
        sums |= {f"{part}/{key}": value for key, value in own.items()}
    return files, sums


def add_sums(captured: Captured, sums: Mapping[str, Sums], team: Team) -> dict[str, str]:
    """Return the hash of every tensor from the sums of all ranks. Collective: every rank must call it."""
    names = [f"{part}/{name}" for part, pieces in captured.parts.items() for name in pieces]
    total = np.zeros((len(names), NUM_SUMS), dtype=np.uint64)
    for number, name in enumerate(names):
        if name in sums:
            total[number] = sums[name]
    team.add(torch.from_numpy(total.view(np.int64)))
    return {name: hash_text(own) for name, own in zip(names, total, strict=True)}


def finish_folder(
    folder: Path, captured: Captured, hashes: Mapping[str, str], files: Mapping[str, FileFacts], facts: dict[str, Any]
) -> None:
    """Write the manifest once all ranks have written their files. Only the lead calls it."""
    world_size = facts["world_size"]
    parts = {
        part: {
            "files": _file_names(part, world_size if _is_split(pieces) else 1),
            "tensors": {
                name: {"dtype": piece.type_name, "shape": list(piece.shape), "hash": hashes[f"{part}/{name}"]}
                | ({"split": True} if piece.is_shard else {})
                for name, piece in pieces.items()
            },
        }
        for part, pieces in captured.parts.items()
    }
    manifest = {"format": FORMAT, "time": time.time(), **facts, "tensor_hash": HASH}
    manifest |= {"files": {name: each.as_dict() for name, each in sorted(files.items())}}
    write_manifest(folder, manifest | {"parts": parts, "state": captured.plain})
    sync_folder(folder)


def open_folder(folder: Path, *, is_checked: bool = False) -> dict[str, Any]:
    """Return the state with a SavedTensor for every tensor.

    Unless its files were checked before, each is checked when the first tensor of it is read.
    """
    manifest = read_manifest(folder)
    if manifest.get("format") != FORMAT or not {"parts", "state"} <= manifest.keys():
        raise CheckpointError(f"{folder} is not a checkpoint of format {FORMAT}, which this Paceline reads")
    opened = cache(partial(_open_file, folder, manifest, is_checked=is_checked))
    try:
        parts: Parts = {
            part: {name: _saved(name, facts, held["files"], opened) for name, facts in held["tensors"].items()}
            for part, held in manifest["parts"].items()
        }
        return join_state(parts, manifest["state"])
    except (KeyError, TypeError, ValueError, RecursionError) as cause:
        raise CheckpointError(f"{folder} cannot be read: its state and its tensors do not fit ({cause})") from cause


def check_folder(folder: Path, *, rank: int = 0, world_size: int = 1) -> None:
    """Raise CheckpointError if the manifest is damaged, or one of every `world_size` files from the rank-th on."""
    manifest = read_manifest(folder)
    check_files(folder, manifest, list(manifest["files"])[rank::world_size])


def _saved(name: str, facts: dict[str, Any], files: list[str], opened: Callable[[str], Any]) -> SavedTensor:
    used = files if facts.get("split") else files[:1]
    return SavedTensor(
        shape=torch.Size(facts["shape"]),
        dtype=DTYPES[facts["dtype"]],
        digest=facts["hash"],
        pieces=tuple(partial(_read, opened, file, name) for file in used),
    )


def _open_file(folder: Path, manifest: dict[str, Any], name: str, *, is_checked: bool) -> Any:
    if not is_checked:
        check_files(folder, manifest, [name])
    try:
        return safe_open(folder / name, framework="pt")
    except (OSError, SafetensorError) as cause:
        raise CheckpointError(f"cannot read {folder / name}: {cause}") from cause


def _read(opened: Callable[[str], Any], file: str, name: str) -> Tensor:
    try:
        return opened(file).get_tensor(name)
    except SafetensorError as cause:
        raise CheckpointError(f"cannot read {name} from {file}: {cause}") from cause


def _is_split(pieces: Mapping[str, Piece]) -> bool:
    return any(piece.is_shard for piece in pieces.values())


def _file_names(part: str, num_files: int) -> list[str]:
    """Return the files of a part. Shards have a folder for themselves, which torch.distributed.checkpoint can read."""
    base = re.sub(r"^\.", "%2E", quote(part, safe=" "))
    if num_files == 1:
        return [f"{base}.safetensors"]
    return [f"{base}/shard-{number:05d}-of-{num_files:05d}.safetensors" for number in range(num_files)]
