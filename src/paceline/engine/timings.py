"""From the clock of every rank to the phases of an interval: communication, and waiting for slower ranks."""

import os
import resource
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from paceline.engine.clock import GRAD_SYNC, Clock
from paceline.records.phases import CLOCK_PHASES, PHASES, PhaseRecord

THREADS = "/proc/self/task"
OF_THE_PROCESS = np.array([0, 1, 1] + [0] * len(CLOCK_PHASES))


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockTimes:
    """The times of one rank since the last call."""

    seconds: float
    totals: list[float]
    waits: np.ndarray
    """Seconds from the end of the backward pass to the averaged gradients, per step."""
    cpu: float
    cpu_wait: float
    """Seconds in which a thread was ready to run but no core was free (run-queue wait)."""


class Timings:
    """Collects the times of all ranks until an interval ends."""

    def __init__(self, clock: Clock, world_size: int) -> None:
        self._clock = clock
        self._own = self._readings() * OF_THE_PROCESS  # the process may be older than the run
        self._world_size = world_size
        self._clear()

    def take(self) -> ClockTimes:
        """Return the times of this rank since the last call."""
        now = self._readings()
        since, self._own = now - self._own, now
        return ClockTimes(
            seconds=float(since[0]),
            cpu=float(since[1]),
            cpu_wait=float(since[2]),
            totals=since[3:].tolist(),
            waits=np.array(self._clock.take_waits(), dtype=np.float32),
        )

    def add(self, times: Sequence[ClockTimes]) -> None:
        """Add the times of all ranks.

        All ranks get the averaged gradients at the same moment, so the rank that waited least arrived last: its wait is
        communication, and the extra wait of each other rank is waiting for it.
        """
        waits = np.array([rank.waits for rank in times], dtype=np.float64)
        if waits.size and self._world_size > 1:
            self._straggler += (waits - waits.min(axis=0)).sum(axis=1)
            self._last += np.bincount(waits.argmin(axis=0), minlength=self._world_size)
        self._steps += waits.shape[1]
        self._rows += np.array([[rank.seconds, rank.cpu, rank.cpu_wait, *rank.totals] for rank in times])

    def record(self, step: int) -> PhaseRecord:
        """Return the interval that ends here, and start the next."""
        rows = np.column_stack([self._rows, self._straggler])
        rows[:, 3 + GRAD_SYNC] -= self._straggler
        seconds, cpu, cpu_wait, *totals, straggler = (np.round(rows, 6) + 0.0).T.tolist()  # to the microsecond, no -0.0
        by_name = dict(zip(CLOCK_PHASES, totals, strict=True)) | {
            "communication": totals[GRAD_SYNC],
            "straggler": straggler,
        }
        record = PhaseRecord(
            step=step,
            steps=self._steps,
            seconds=seconds,
            phases={phase: by_name[phase] for phase in PHASES},
            last=self._last.tolist(),
            cpu=cpu,
            cpu_wait=cpu_wait,
        )
        self._clear()
        return record

    def _readings(self) -> np.ndarray:
        use = resource.getrusage(resource.RUSAGE_SELF)
        totals = self._clock.totals()
        return np.array([self._clock.seconds, use.ru_utime + use.ru_stime, _cpu_wait(), *totals])

    def _clear(self) -> None:
        self._rows = np.zeros((self._world_size, len(self._own)))
        self._straggler = np.zeros(self._world_size)
        self._last = np.zeros(self._world_size, dtype=int)
        self._steps = 0


def _cpu_wait() -> float:
    """Return the run-queue wait of the most delayed thread in seconds; 0 if the kernel does not provide it.

    Threads that compute together wait for the last one, so the rank has lost at least this time.
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
