"""A tensor of a checkpoint: its shape and hash are known, its contents stay on disk until rows of it are read."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Reader = Callable[[], Tensor]
"""Returns the contents of a file under one name, mapped into memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedTensor:
    """A tensor in one or more files, of which each has the same number of rows, the last ones fewer or none.

    It can be sliced by rows, as a tensor can.
    """

    shape: torch.Size
    dtype: torch.dtype
    digest: str | None = None
    """The hash of its contents, which does not depend on the number of files."""
    pieces: tuple[Reader, ...] = ()
    """Empty on a rank that only knows that the lead has the tensor."""

    @property
    def nbytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.numel() * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 1

    def numel(self) -> int:
        """Return the number of elements."""
        return self.shape.numel()

    def dim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    def __getitem__(self, rows: slice) -> Tensor:
        """Return some rows; a number counts as one row."""
        start, stop, _ = rows.indices(len(self))
        size = math.prod(self.shape[1:])
        return self.flat(start * size, stop * size).view(stop - start, *self.shape[1:])

    def flat(self, start: int, stop: int) -> Tensor:
        """Return some elements in row-major order, without a copy if they are in one file."""
        if not self.pieces:
            return torch.empty(stop - start, dtype=self.dtype, device="meta")
        length = -(-len(self) // len(self.pieces)) * math.prod(self.shape[1:])
        found = [
            self._piece(number)[max(0, start - number * length) : stop - number * length]
            for number in range(len(self.pieces))
            if number * length < stop and start < (number + 1) * length
        ]
        return found[0] if len(found) == 1 else torch.cat(found or [torch.empty(0, dtype=self.dtype)])

    def whole(self) -> Tensor:
        """Return the tensor: mapped from its file, or joined from several in memory."""
        return self.flat(0, self.numel()).view(self.shape)

    def described(self) -> "SavedTensor":
        """Return the same without contents, for ranks that receive them."""
        return SavedTensor(shape=self.shape, dtype=self.dtype, digest=self.digest)

    def _piece(self, number: int) -> Tensor:
        stored = self.pieces[number]().reshape(-1)
        return stored if stored.dtype == self.dtype else stored.view(self.dtype)
