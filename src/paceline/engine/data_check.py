"""Checks the data at the start: a sample is always the same, on every rank and after a resume."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from paceline.core.augment_syntax import own_steps
from paceline.core.config import Config
from paceline.core.errors import DataError, RunError
from paceline.core.plugin import is_plugin
from paceline.data.catalog import Splits, is_own_data
from paceline.data.split import HeldSplit, Ids, Split
from paceline.data.tree import tree_bytes
from paceline.parallel.team import Team

NUM_COMPARED = 8
NUM_REPEATED = 16
LARGEST_HELD = 1 << 30
"""Bytes of tensors in memory that are compared as a whole: that takes about a second."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFacts:
    """What is known about the data of a run."""

    digests: Mapping[str, str]
    """By split, the number of samples and a hash of a few of them, or of all; stored in checkpoints."""
    warnings: tuple[str, ...]


def check_data(splits: Splits, config: Config, team: Team) -> DataFacts:
    """Refuse ranks with different samples, and with --exact bitwise samples that change. Collective."""
    sources = [name for name in own_steps(config.augment_policy) if is_plugin(name)]
    sources = [config.data, *sources] if is_own_data(config.data) else sources
    name = " or ".join(sources)
    changing = _changing_sample(splits) if sources else None
    problem = next((found for found in team.gather(changing) if found is not None), None)
    if problem is not None and config.exact == "bitwise":
        raise DataError(
            f"{name} has its own randomness: {problem} differs when it is read again",
            hint="draw from torch, numpy.random or random, which Paceline seeds for every sample, or from a generator "
            "seeded with the index; or use --exact order",
        )
    digests = {name: _digest(split, whole=problem is None) for name, split in _named(splits).items()}
    digests |= _digests_of_held(splits)
    _refuse_other_data(digests, team, name=config.data)
    return DataFacts(digests=digests, warnings=() if problem is None else (_warning(name, problem),))


def data_changes(before: Mapping[str, str] | None, now: DataFacts, config: Config) -> list[str]:
    """Return a warning if the data has changed since a checkpoint was saved; refuse it with --exact bitwise.

    Checkpoints of earlier versions have no digests, or fewer; samples may be in memory in one start and not in another.
    """
    changed = [name for name, digest in (before or {}).items() if now.digests.get(name, digest) != digest]
    if before is None or not changed:
        return []
    sizes = [_change(name, before[name], now.digests[name]) for name in changed]
    problem = f"the samples of {config.data} are not those of the checkpoint ({', '.join(sizes)})"
    if config.exact == "bitwise":
        raise RunError(f"cannot resume bitwise: {problem}", hint="restore the data, or continue with --exact order")
    return [f"{problem}: from here on the run uses the new ones"]


def _change(name: str, before: str, now: str) -> str:
    sizes = _size(before), _size(now)
    return f"{name}: other values" if sizes[0] == sizes[1] else f"{name} {' → '.join(sizes)}"


def _named(splits: Splits) -> dict[str, Split]:
    return {"train": splits.train, "valid": splits.valid, "test": splits.test}


def _changing_sample(splits: Splits) -> str | None:
    """Return the first sample that differs when a few are read again in the reverse order; None if all are fixed."""
    for name, split in _named(splits).items():
        ids, epoch = _some_ids(split, NUM_REPEATED), 0 if name == "train" else None
        first = {index: _sample_bytes(split, index, epoch) for index in ids.tolist()}
        again = {index: _sample_bytes(split, index, epoch) for index in reversed(ids.tolist())}
        changing = [index for index in first if first[index] != again[index]]
        if changing:
            return f"sample {changing[0]} of the {name} split"
    return None


def _sample_bytes(split: Split, index: int, epoch: int | None) -> bytes:
    """Return a sample that is fetched alone: collating may pad samples to the longest of their batch."""
    return tree_bytes(split.fetch(np.array([index]), epoch))


def _some_ids(split: Split, number: int) -> Ids:
    return np.unique(np.linspace(0, len(split) - 1, number, dtype=np.int64))


def _digest(split: Split, *, whole: bool) -> str:
    """Return the number of samples, with a hash of a few of them where samples are fixed (`whole`)."""
    if not whole:
        return str(len(split))
    batch = split.fetch(_some_ids(split, NUM_COMPARED), None)
    return f"{len(split)} {sha256(tree_bytes(batch)).hexdigest()}"


def _digests_of_held(splits: Splits) -> dict[str, str]:
    """Return the number of samples of each split in memory, with a hash of all; `valid` is often a part of `train`."""
    found: dict[str, str] = {}
    seen: list[list[int]] = []
    for name, split in _named(splits).items():
        tensors = split.held if isinstance(split, HeldSplit) else ()
        places = [tensor.data_ptr() for tensor in tensors]
        if 0 < sum(tensor.nbytes for tensor in tensors) <= LARGEST_HELD and places not in seen:
            seen.append(places)
            digest = sha256()
            for tensor in tensors:
                digest.update(tree_bytes(tensor))
            found[f"all of {name}"] = f"{len(split)} {digest.hexdigest()}"
    return found


def _size(digest: str) -> str:
    return f"{int(digest.partition(' ')[0]):,}"


def _refuse_other_data(digests: Mapping[str, str], team: Team, *, name: str) -> None:
    for rank, theirs in enumerate(everyone := team.gather(digests)):
        if any(theirs[name] != everyone[0][name] for name in theirs.keys() & everyone[0].keys()):
            raise DataError(
                f"rank {rank} and rank 0 have different samples in {name}",
                hint="give every rank the same files; in your own data, sort file lists",
            )


def _warning(name: str, problem: str) -> str:
    return (
        f"{name} has its own randomness ({problem} differs when it is read again): the result depends on the number of "
        "ranks, on --workers and on resumes; draw from torch, numpy.random or random, which Paceline seeds for every "
        "sample, or from a generator seeded with the index"
    )
