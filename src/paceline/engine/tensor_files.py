"""Tensors in safetensors files: pieces of them written and hashed in one pass, and read from mapped files."""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from paceline.core.errors import CheckpointError
from paceline.parallel.sharded import is_sharded
from paceline.records.manifest import FileFacts
from paceline.records.tensor_hash import Sums, no_sums, sum_words

CHUNK = 16 << 20
"""Bytes in memory at a time, beside the tensors themselves."""
TYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.uint16: "U16",
    torch.int32: "I32", torch.uint32: "U32", torch.int64: "I64", torch.uint64: "U64", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.float32: "F32", torch.float64: "F64", torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
"""Types of safetensors files, and their names there; others are stored as bytes, and packed ones such as float4 have no
values that can be compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """What this rank holds of a tensor: all of it, or a number of rows."""

    local: Tensor
    shape: tuple[int, ...]
    """The shape of the whole tensor."""
    first: int = 0
    """The first row of this rank."""
    is_shard: bool = False

    @property
    def type_name(self) -> str:
        """The name of the type in torch."""
        return str(self.local.dtype).removeprefix("torch.")


def piece_of(tensor: Tensor) -> Piece:
    """Return what this rank holds of a tensor; fsdp shards rows."""
    if not is_sharded(tensor):
        return Piece(local=tensor.detach(), shape=tuple(tensor.shape))
    assert all(placement.is_shard(0) for placement in tensor.placements), "fsdp shards rows"
    per_rank = -(-len(tensor) // tensor.device_mesh.size())
    first = min(len(tensor), tensor.device_mesh.get_local_rank() * per_rank)
    return Piece(local=tensor.to_local().detach(), shape=tuple(tensor.shape), first=first, is_shard=True)


def write_tensors(path: Path, pieces: Mapping[str, Piece]) -> tuple[FileFacts, dict[str, Sums]]:
    """Write pieces of tensors to a file, and return its facts and the hash sums of each piece.

    The header has the offsets of shards, as torch.distributed.checkpoint writes and reads them.
    """
    ordered = dict(sorted(pieces.items(), key=lambda item: -item[1].local.element_size()))  # keeps all aligned
    digest, sums = hashlib.sha256(), {}
    header = _header(ordered)
    num_bytes = len(header)
    with path.open("wb", buffering=0) as file:
        file.write(header)
        digest.update(header)
        for name, piece in ordered.items():
            total, position = no_sums(), piece.first * math.prod(piece.shape[1:])
            for chunk in _chunks(piece.local):
                _write_all(file, chunk)
                digest.update(chunk.data)
                total += sum_words(chunk, element_bytes=piece.local.element_size(), first=position)
                position += len(chunk) // piece.local.element_size()
                num_bytes += len(chunk)
            sums[name] = total
        os.fsync(file.fileno())
    return FileFacts(sha256=digest.hexdigest(), num_bytes=num_bytes), sums


def _header(pieces: Mapping[str, Piece]) -> bytes:
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    if any(piece.is_shard for piece in pieces.values()):
        starts = {
            name: [piece.first, *(0 for _ in piece.shape[1:])] if piece.shape else [] for name, piece in pieces.items()
        }
        offsets = {name: {"saved_offsets": start} for name, start in starts.items()}
        entries["__metadata__"] |= {"DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0"}
    start = 0
    for name, piece in pieces.items():
        local, kind = piece.local, TYPES.get(piece.local.dtype)
        shape = [*local.shape] if kind is not None else [*local.shape, local.element_size()]
        end = start + local.numel() * local.element_size()
        entries[name] = {"dtype": kind or "U8", "shape": shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _chunks(tensor: Tensor) -> Iterator[NDArray[Any]]:
    """Yield the bytes of a tensor in row-major order, a few MB at a time."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise CheckpointError("a checkpoint holds dense tensors only", hint="call to_dense() in state_dict")
    rows = torch.atleast_1d(tensor.resolve_conj().resolve_neg())
    rows = rows.view(-1) if rows.is_contiguous() else rows
    step = max(1, CHUNK * len(rows) // max(1, rows.nbytes))
    for start in range(0, len(rows) if rows.numel() else 0, step):
        piece = rows[start : start + step].to("cpu", memory_format=torch.contiguous_format)
        yield piece.contiguous().view(-1).view(torch.uint8).numpy()


def _write_all(file: Any, data: NDArray[Any]) -> None:
    view, done = data.data, 0
    while done < len(view):
        done += file.write(view[done:])
