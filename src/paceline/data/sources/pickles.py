"""Pickled arrays from strangers: reads what the CIFAR archives hold, and refuses to run anything else."""

import pickle
from typing import Any, BinaryIO

import numpy as np
from numpy._core.multiarray import _reconstruct  # pyright: ignore[reportAttributeAccessIssue]

_ALLOWED = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that knows arrays, and no other class or function."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the allowed class of this name."""
        if (module, name) == ("_codecs", "encode"):
            return _latin1
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"it wants to run {module}.{name}") from None


def load_arrays(file: BinaryIO) -> dict[str, Any]:
    """Return the pickled dictionary with its keys as text; raises UnpicklingError for anything but plain data."""
    loaded = _ArraysOnly(file, encoding="bytes").load()
    if not isinstance(loaded, dict):
        raise pickle.UnpicklingError(f"it holds a {type(loaded).__name__}, not a dictionary")
    return {key.decode() if isinstance(key, bytes) else str(key): value for key, value in loaded.items()}


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    """Bytes in pickles of newer Pythons with an old protocol are text to be encoded."""
    return text.encode(encoding)
