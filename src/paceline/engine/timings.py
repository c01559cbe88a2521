"""From the laps of every rank to the phases of an interval: who waited for gradients, and who for a later rank."""

import os
import resource
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from paceline.engine.clock import EXCHANGE, LAPS, Clock
from paceline.records.phases import PHASES, PhaseRecord

THREADS = "/proc/self/task"
OF_THE_PROCESS = np.array([0, 1, 1] + [0] * len(LAPS))


@dataclass(frozen=True, kw_only=True, slots=True)
class Laps:
    """What one rank's clock counted since the last time."""

    seconds: float
    totals: list[float]
    waits: np.ndarray
    """Seconds between the end of computing and the averaged gradients, step by step."""
    cpu: float
    starved: float
    """Seconds in which a thread was ready to run and no core was free."""


class Timings:
    """Collects the laps of all ranks until an interval ends."""

    def __init__(self, clock: Clock, world_size: int) -> None:
        self._clock = clock
        self._own = self._readings() * OF_THE_PROCESS  # which may be older than the run
        self._world_size = world_size
        self._clear()

    def take(self) -> Laps:
        """Return what this rank's clock counted since the last call."""
        now = self._readings()
        since, self._own = now - self._own, now
        return Laps(
            seconds=float(since[0]),
            cpu=float(since[1]),
            starved=float(since[2]),
            totals=since[3:].tolist(),
            waits=np.array(self._clock.take_waits(), dtype=np.float32),
        )

    def add(self, laps: Sequence[Laps]) -> None:
        """Add what all ranks counted.

        All ranks have the averaged gradients at the same moment, so the one that waited least was the last to arrive:
        what it waited is communication, and what the others waited longer is waiting for it.
        """
        waits = np.array([rank.waits for rank in laps], dtype=np.float64)
        if waits.size and self._world_size > 1:
            self._straggler += (waits - waits.min(axis=0)).sum(axis=1)
            self._last += np.bincount(waits.argmin(axis=0), minlength=self._world_size)
        self._steps += waits.shape[1]
        self._rows += np.array([[rank.seconds, rank.cpu, rank.starved, *rank.totals] for rank in laps])

    def record(self, step: int) -> PhaseRecord:
        """Return the interval that ends here, and begin the next."""
        rows = np.column_stack([self._rows, self._straggler])
        rows[:, 3 + EXCHANGE] -= self._straggler
        seconds, cpu, starved, *laps, straggler = (np.round(rows, 6) + 0.0).T.tolist()  # to the microsecond, no -0.0
        by_name = dict(zip(LAPS, laps, strict=True)) | {"communication": laps[EXCHANGE], "straggler": straggler}
        record = PhaseRecord(
            step=step,
            steps=self._steps,
            seconds=seconds,
            phases={phase: by_name[phase] for phase in PHASES},
            last=self._last.tolist(),
            cpu=cpu,
            starved=starved,
        )
        self._clear()
        return record

    def _readings(self) -> np.ndarray:
        use = resource.getrusage(resource.RUSAGE_SELF)
        totals = self._clock.totals()
        return np.array([self._clock.seconds, use.ru_utime + use.ru_stime, _starved(), *totals])

    def _clear(self) -> None:
        self._rows = np.zeros((self._world_size, len(self._own)))
        self._straggler = np.zeros(self._world_size)
        self._last = np.zeros(self._world_size, dtype=int)
        self._steps = 0


def _starved() -> float:
    """Return how long the kernel has let the thread that waited most wait for a core; 0 where it does not say.

    Threads that compute together wait for the last of them, so this is the least that the rank has lost.
    """
    waited = 0
    with suppress(OSError):
        for thread in os.listdir(THREADS):  # noqa: PTH208 - four times as quick as pathlib
            with suppress(OSError, ValueError, IndexError):  # a thread may end meanwhile
                waited = max(waited, int(_read(f"{THREADS}/{thread}/schedstat").split()[1]))
    return waited / 1e9


def _read(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123 - as above
        return file.read()
