"""Digests of tensors, batches and data sets, to compare them between ranks."""

import hashlib
import zlib
from collections.abc import Iterable
from typing import Any

import torch

MOST_BYTES = 1 << 22
MOST_BYTES_OF_BATCH = 1 << 18
NO_FACTS = frozenset({"transform", "target_transform", "transforms", "loader"})
DEEPEST = 3


def digest(tensor: Any, most: int = MOST_BYTES) -> int:
    """Return a checksum of the first bytes of a tensor."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor  # a DTensor would communicate
    flat = local.detach().cpu().contiguous().reshape(-1)
    flat = flat[: max(1, most // flat.element_size())]
    try:
        return zlib.crc32(flat.view(torch.uint8).numpy().tobytes())
    except (RuntimeError, TypeError):
        return zlib.crc32(repr(float(flat.double().sum())).encode())


def digest_all(tensors: Iterable[Any]) -> int:
    """Return one checksum of several tensors."""
    total = 0
    for tensor in tensors:
        total = zlib.crc32(str(digest(tensor)).encode(), total)
    return total


def digest_leaves(batch: Any) -> list[int]:
    """Return the checksums of the tensors of a batch: labels among them, which augmentation leaves alone."""
    if isinstance(batch, torch.Tensor):
        return [digest(batch, MOST_BYTES_OF_BATCH)]
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        return [found for item in batch for found in digest_leaves(item)][:8]
    return []


def dataset_facts(dataset: Any, depth: int = 0) -> dict[str, str]:
    """Return digests of the attributes of a data set, and of those that it wraps."""
    found: dict[str, str] = {}
    for name, value in list(getattr(dataset, "__dict__", {}).items()):
        if name in NO_FACTS or name.startswith("__"):
            continue
        if isinstance(value, torch.utils.data.Dataset) and depth < DEEPEST:
            found.update({f"{name}.{key}": inner for key, inner in dataset_facts(value, depth + 1).items()})
        elif (text := _fact(value)) is not None:
            found[name] = text
    if isinstance(dataset, torch.utils.data.TensorDataset):
        found["tensors"] = f"tensor:{digest_all(dataset.tensors)}"
    return found


def _fact(value: Any, depth: int = 0) -> str | None:
    if isinstance(value, torch.Tensor):
        return f"tensor{tuple(value.shape)}:{digest(value)}"
    if type(value).__name__ == "ndarray":
        return f"array{value.shape}:{zlib.crc32(value.tobytes()[:MOST_BYTES])}"
    if isinstance(value, str | int | float | bool | None):
        return str(value)[:200]
    if isinstance(value, list | tuple) and depth < DEEPEST:
        some = [str(_fact(item, depth + 1)) for item in (*value[:40], *value[-40:])]
        return f"list{len(value)}:" + hashlib.md5("|".join(some).encode(), usedforsecurity=False).hexdigest()[:12]
    return None


def digest_sample(sample: Any) -> list[int]:
    """Return the checksums of all that a sample holds: tensors, arrays, images, numbers, texts."""
    if isinstance(sample, torch.Tensor):
        return [digest(sample, MOST_BYTES_OF_BATCH)]
    if isinstance(sample, dict):
        sample = list(sample.values())
    if isinstance(sample, list | tuple):
        return [found for item in sample for found in digest_sample(item)][:64]
    array: Any = sample  # or an image
    return [zlib.crc32(array.tobytes() if hasattr(sample, "tobytes") else repr(sample)[:4096].encode())]
