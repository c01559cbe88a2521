"""Files in the safetensors format, mapped rather than read: a length, a JSON header, and the bytes of the tensors."""

import json
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline.core.errors import CheckpointError

DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "U16": torch.uint16,
    "I32": torch.int32, "U32": torch.uint32, "I64": torch.int64, "U64": torch.uint64, "F16": torch.float16,
    "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
LONGEST_HEADER = 100_000_000


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a file; their bytes stay on disk until they are looked at."""
    header, start = _read_header(path)
    body = np.memmap(path, dtype=np.uint8, mode="c") if path.stat().st_size else np.empty(0, np.uint8)
    return {name: _tensor(path, name, facts, body[start:]) for name, facts in header.items() if name != "__metadata__"}


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else LONGEST_HEADER + 1
        if length > min(LONGEST_HEADER, path.stat().st_size - 8):
            raise CheckpointError(f"{path} is not a safetensors file, or is cut short")
        try:
            header = json.loads(file.read(length))
        except ValueError as cause:
            raise CheckpointError(f"{path} is not a safetensors file: its header is not JSON") from cause
    if not isinstance(header, dict):
        raise CheckpointError(f"{path} is not a safetensors file: its header is no table")
    return header, 8 + length


def _tensor(path: Path, name: str, facts: Any, body: np.ndarray) -> torch.Tensor:
    try:
        dtype, shape, (begin, end) = DTYPES[facts["dtype"]], facts["shape"], facts["data_offsets"]
    except (KeyError, TypeError, ValueError) as cause:
        raise CheckpointError(f"{path}: {name} is of a kind that Paceline does not read: {facts}") from cause
    if not 0 <= begin <= end <= len(body) or end - begin != math.prod(shape) * dtype.itemsize:
        raise CheckpointError(f"{path} is cut short or damaged: {name} lies outside of it")
    if begin == end:
        return torch.empty(shape, dtype=dtype)
    return torch.from_numpy(np.asarray(body[begin:end])).view(dtype).view(shape)
