"""Tensors for comparison, read piece by piece as bits and as values."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from paceline.compare.tensors import Block
from paceline.engine.saved_tensor import SavedTensor

BLOCK = 1 << 20
"""Elements read at a time: a few dozen MB for tensors of any size."""
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in memory or in a mapped file."""

    tensor: torch.Tensor
    digest = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape; a complex tensor has a last dimension of 2."""
        return (*self.tensor.shape, 2) if self.tensor.is_complex() else tuple(self.tensor.shape)

    @property
    def dtype(self) -> str:
        """The name of its type, such as float32."""
        return str(self.tensor.dtype).removeprefix("torch.")

    def blocks(self) -> Iterator[Block]:
        """Yield bits and values of a million elements at a time."""
        flat = _dense(self.tensor).reshape(-1)
        for start in range(0, len(flat), BLOCK):
            yield _block(flat[start : start + BLOCK])


@dataclass(frozen=True, slots=True)
class HashedTensor:
    """A tensor of a checkpoint with a manifest."""

    saved: SavedTensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape; a complex tensor has a last dimension of 2."""
        return (*self.saved.shape, 2) if self.saved.dtype.is_complex else tuple(self.saved.shape)

    @property
    def dtype(self) -> str:
        """The name of its type, such as float32."""
        return str(self.saved.dtype).removeprefix("torch.")

    @property
    def digest(self) -> str | None:
        """The hash of its contents in the manifest."""
        return self.saved.digest

    def blocks(self) -> Iterator[Block]:
        """Yield bits and values of a million elements at a time."""
        width = 2 if self.saved.dtype.is_complex else 1
        for start in range(0, self.saved.numel(), BLOCK // width):
            piece = self.saved.flat(start, min(self.saved.numel(), start + BLOCK // width))
            yield _block(torch.view_as_real(piece).reshape(-1) if width == 2 else piece)


def _block(elements: torch.Tensor) -> Block:
    piece = elements.clone(memory_format=torch.contiguous_format)
    bits = piece.view(BITS[piece.itemsize]).numpy().view(np.dtype(f"u{piece.itemsize}"))
    return Block(bits, piece.to(torch.float64).numpy())


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as a plain dense one."""
    plain = tensor.detach()
    if plain.is_quantized:
        plain = plain.dequantize()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    return torch.view_as_real(plain.resolve_conj()) if plain.is_complex() else plain
