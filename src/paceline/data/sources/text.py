"""Text as token ids: the embedded book and files as bytes, and memory-mapped files of ids from any tokenizer."""

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.core.errors import DataError
from paceline.core.units import count
from paceline.data.split import DataSet, Ids

ALICE = Path(__file__).parent / "alice.txt"
NUM_BYTES = 256
TEST_FRACTION = 0.1
META = "meta.json"
TYPES = {"uint8": "<u1", "uint16": "<u2", "uint32": "<u4"}
"""Types of token ids, little-endian."""
META_HINT = 'write {path}: {{"dtype": "uint16", "vocab_size": 50257}}'


@functools.cache
def _mapped(path: Path, kind: str) -> NDArray[Any]:
    """Map a file of token ids into memory, once per process: a worker process maps it again."""
    return np.memmap(path, dtype=kind, mode="r")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sequences:
    """A split of token ids: sample i has the `context` tokens from i × context on, and the one after them."""

    path: Path
    kind: str
    start: int
    end: int
    """The tokens of the split, as indices into the file."""
    context: int
    vocab_size: int

    def __len__(self) -> int:
        return (self.end - self.start - 1) // self.context

    def fetch(self, ids: Ids, epoch: int | None) -> torch.Tensor:  # every epoch has the same samples
        """Return token ids (N × context + 1): each but the last of a row is an input, each but the first a target."""
        first = self.start + ids[:, None] * self.context
        places = first + np.arange(self.context + 1)
        tokens = _mapped(self.path, self.kind)[places].astype(np.int64)
        if tokens.max(initial=0) >= self.vocab_size:
            wrong = np.argwhere(tokens >= self.vocab_size)[0]
            raise DataError(
                f"{self.path}: token {count(int(places[tuple(wrong)]))} is {tokens[tuple(wrong)]}, "
                f"but the vocabulary has {count(self.vocab_size)}",
                hint="correct vocab_size and dtype in its meta file, or write the file again",
            )
        return torch.from_numpy(tokens)


def open_alice(context: int) -> DataSet:
    """Return the bytes of "Alice's Adventures in Wonderland", the last tenth for the test."""
    return open_text(ALICE, context)


def open_text(path: Path, context: int) -> DataSet:
    """Return the bytes of a text file, the last tenth for the test."""
    if not path.is_file():
        raise DataError(f"{path} does not exist", hint="write text:FILE with the path of a text file")
    return _data_set([_whole(path, "uint8", NUM_BYTES, context)])


def open_tokens(path: Path, context: int) -> DataSet:
    """Return the token ids of a file, or of train.bin and val.bin in a folder.

    The files have no header. meta.json in the folder, or FILE.json beside a file, names dtype and vocab_size.
    """
    if path.is_dir():
        files = [path / name for name in ("train.bin", "val.bin") if (path / name).is_file()]
        meta = path / META
    else:
        files, meta = [path] if path.is_file() else [], path.with_name(f"{path.name}.json")
    if not files or files[0].name == "val.bin":
        raise DataError(f"{path} has no token ids", hint="give a file, or a folder with train.bin")
    dtype, vocab_size = _read_meta(meta)
    return _data_set([_whole(file, dtype, vocab_size, context) for file in files])


def _read_meta(path: Path) -> tuple[str, int]:
    hint = META_HINT.format(path=path)
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
        dtype, vocab_size = meta["dtype"], int(meta["vocab_size"])
    except FileNotFoundError as cause:
        raise DataError(f"{path} does not exist; it names the type of the token ids", hint=hint) from cause
    except (ValueError, KeyError, TypeError) as cause:
        raise DataError(f"{path} does not name dtype and vocab_size", hint=hint) from cause
    if dtype not in TYPES or vocab_size < 1:
        raise DataError(f"{path}: dtype {dtype} with vocab_size {vocab_size} makes no token ids", hint=hint)
    return dtype, vocab_size


def _whole(path: Path, dtype: str, vocab_size: int, context: int) -> Sequences:
    """Return all tokens of a file, checked for its size."""
    kind = TYPES[dtype]
    num_bytes, size = path.stat().st_size, np.dtype(kind).itemsize
    if num_bytes == 0:
        raise DataError(f"{path} is empty", hint="write the token ids again")
    if num_bytes % size:
        raise DataError(
            f"{path} is truncated: {count(num_bytes)} bytes are no whole number of {dtype}",
            hint="write the file again, or correct dtype in its meta file",
        )
    return Sequences(
        path=path.resolve(), kind=kind, start=0, end=num_bytes // size, context=context, vocab_size=vocab_size
    )


def _data_set(files: list[Sequences]) -> DataSet:
    train = files[0]
    if len(files) == 2:
        test = files[1]
    else:
        cut = round(train.end * (1 - TEST_FRACTION))
        test = _part(train, cut, train.end)
        train = _part(train, 0, cut)
    for split in (train, test):
        if len(split) == 0:
            raise DataError(
                f"{split.path} has too few tokens for a sample of {split.context} in training and test",
                hint="use a smaller --context, or more data",
            )
    facts = {"vocab_size": train.vocab_size, "context": train.context}
    return DataSet(train=train, test=test, task="language", named_facts=facts)


def _part(whole: Sequences, start: int, end: int) -> Sequences:
    return Sequences(
        path=whole.path, kind=whole.kind, start=start, end=end, context=whole.context, vocab_size=whole.vocab_size
    )
