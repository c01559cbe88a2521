"""The global random generators: their states, who sets them, and what a worker's own initialisation leaves behind."""

import random
import sys
import zlib
from typing import Any

import torch
from paceline_attach import journal

from .digests import digest

set_by_script: set[str] = set()
"""The generators that were seeded or set since this set was last cleared."""


def generator_states() -> dict[str, int]:
    """Return checksums of the global random generators."""
    found = {"torch": digest(torch.get_rng_state()), "python": zlib.crc32(repr(random.getstate()).encode())}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state = numpy.random.get_state()
        found["numpy"] = zlib.crc32(state[1].tobytes() + str(state[2]).encode())
    return found


class Generators:
    """The states of the global random generators, saved and restored together."""

    def __init__(self) -> None:
        numpy = sys.modules.get("numpy")
        self._states = torch.get_rng_state(), random.getstate(), numpy.random.get_state() if numpy else None

    def restore(self) -> None:
        """Set the generators to these states."""
        torch.set_rng_state(self._states[0])
        random.setstate(self._states[1])
        if self._states[2] is not None:
            sys.modules["numpy"].random.set_state(self._states[2])

    @staticmethod
    def seed(seed: int) -> None:
        """Seed all generators, as a worker of a DataLoader does."""
        torch.manual_seed(seed)
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed % (1 << 32))


class WorkerSeed:
    """The script's worker_init_fn, with the generators noted that it leaves behind."""

    def __init__(self, function: Any, loader: int) -> None:
        self._function, self._loader = function, loader

    def __call__(self, worker: int) -> None:
        """Seed a worker as the script wants, and note the result."""
        self._function(worker)
        journal.put("worker", loader=self._loader, worker=worker, generators=generator_states())


def follow() -> None:
    """Note which generators the script seeds."""
    _note(torch, "manual_seed", "torch")
    _note(torch, "set_rng_state", "torch")
    _note(random, "seed", "python")
    _note(random, "setstate", "python")
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        _note(numpy.random, "seed", "numpy")
        _note(numpy.random, "set_state", "numpy")


def _note(owner: Any, function: str, generator: str) -> None:
    original = getattr(owner, function)

    def setting(*args: Any, **kwargs: Any) -> Any:
        set_by_script.add(generator)
        return original(*args, **kwargs)

    setattr(owner, function, setting)
