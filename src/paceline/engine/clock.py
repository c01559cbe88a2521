"""Timing a rank by phase. A phase ends by reading the clock on a CPU, by recording an event on a GPU."""

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Variable

from paceline.parallel.team import Team
from paceline.records.phases import CLOCK_PHASES, GRAD_SYNC_PHASE, PHASES

DATA, COPY, FORWARD, BACKWARD, GRAD_SYNC, UPDATE, START, EVALUATE, SAVE, RECORD = range(len(CLOCK_PHASES))
"""Indices of `records.phases.CLOCK_PHASES`."""
UPDATE_PART = len(CLOCK_PHASES)
"""An update of one of several optimizers: its time counts as the update, but does not end the step."""
SECONDS_BETWEEN_QUERIES = 2e-4
NEXT = {
    DATA: PHASES["forward"].text,
    COPY: PHASES["forward"].text,
    FORWARD: PHASES["backward"].text,
    BACKWARD: GRAD_SYNC_PHASE.text,
    GRAD_SYNC: PHASES["update"].text,
    RECORD: PHASES["data"].text,
}
"""The phase that follows a phase; after any other comes record keeping."""


class Clock:
    """Phases add up to the time since the start: each moment belongs to exactly one."""

    def __init__(self, *, age: float = 0.0, alone: bool = False) -> None:
        """`age` is the time since the start of the first phase. A rank that is `alone` never waits for gradients."""
        self._alone = alone
        self._totals = [0.0] * len(CLOCK_PHASES)
        self._waits: list[float] = []
        self._waited = 0.0
        self.started = self.now = time.perf_counter() - age
        self._last = RECORD
        self.before_backward: Callable[[], None] | None = None

    def end_phase(self, phase: int) -> None:
        """Add the time since the last call to a phase. The end of the update ends a step."""
        before, self.now = self.now, time.perf_counter()
        self._count(phase, self.now - before)
        self._last = phase

    def watch(self, loss: Tensor) -> None:
        """End the backward phase of this loss when this rank has computed all of its gradients.

        Autograd runs callbacks in the order of registration, and a backward pass starts at the loss: this callback
        runs before the one in which DDP or FSDP waits for the other ranks.
        """
        if not self._alone:
            loss.register_hook(self._expect_end)
        if self.before_backward is not None:
            self.before_backward()

    @property
    def doing(self) -> str:
        """The phase after the last one that ended."""
        return NEXT.get(self._last, PHASES["record"].text)

    @property
    def seconds(self) -> float:
        """Seconds from the start to the end of the last phase."""
        return self.now - self.started

    def totals(self) -> list[float]:
        """Return the seconds of each phase so far."""
        return list(self._totals)

    def take_waits(self) -> list[float]:
        """Return the seconds of gradient synchronisation in each step since the last call."""
        waits, self._waits = self._waits, []
        return waits

    def _expect_end(self, _gradient: Tensor) -> None:
        Variable._execution_engine.queue_callback(self._end_backward)  # noqa: SLF001 - as torch's own FSDP does

    def _end_backward(self) -> None:
        self.end_phase(BACKWARD)

    def _count(self, phase: int, seconds: float) -> None:
        if phase == UPDATE_PART:
            self._totals[UPDATE] += seconds
            return
        self._totals[BACKWARD if self._alone and phase == GRAD_SYNC else phase] += seconds
        if phase == UPDATE:
            self._waits.append(self._totals[GRAD_SYNC] - self._waited)
            self._waited = self._totals[GRAD_SYNC]


class DeviceClock(Clock):
    """Phases of a GPU, which runs asynchronously: events are recorded during a step and read once per interval.

    An event that is recorded while the device is idle completes at once. So time in which the device waits for data or
    a checkpoint counts for those phases, and time in which it still computes does not.
    """

    def __init__(
        self,
        new_event: Callable[[], Any] = lambda: torch.cuda.Event(enable_timing=True),
        *,
        age: float = 0.0,
        alone: bool = False,
        timeout: float = math.inf,
    ) -> None:
        """`timeout` limits the wait for the device, in seconds."""
        super().__init__(age=age, alone=alone)
        self._timeout = timeout
        self._count(START, age)
        self._new_event = new_event
        self._spare: list[Any] = []
        self._pending: list[tuple[int, Any]] = []
        self._anchor = self._recorded()

    def end_phase(self, phase: int) -> None:
        """Mark the end of a phase on the device, without waiting for it."""
        self._pending.append((phase, self._recorded()))
        self.now = time.perf_counter()
        self._last = phase

    def totals(self) -> list[float]:
        """Wait for the device, and return the seconds of each phase so far."""
        if self._pending:
            self._wait(self._pending[-1][1])
        for phase, event in self._pending:
            self._count(phase, self._anchor.elapsed_time(event) / 1e3)
            self._spare.append(self._anchor)
            self._anchor = event
        self._pending.clear()
        return super().totals()

    def take_waits(self) -> list[float]:
        """Wait for the device, and return the seconds of gradient synchronisation in each step since the last call."""
        self.totals()
        return super().take_waits()

    def _wait(self, event: Any) -> None:
        """Wait for an event by polling: a rank inside CUDA's own wait would notice neither signals nor lost ranks."""
        deadline = time.monotonic() + self._timeout
        while not event.query():
            if time.monotonic() > deadline:
                raise RuntimeError(f"timed out after {self._timeout:g} s in which the device did not finish")
            time.sleep(SECONDS_BETWEEN_QUERIES)

    def _recorded(self) -> Any:
        event = self._spare.pop() if self._spare else self._new_event()
        event.record()
        return event


def clock_for(team: Team, *, began: float | None) -> Clock:
    """Return the clock of a rank; it starts at `began`, in seconds since 1970, or now."""
    age = 0.0 if began is None else max(0.0, time.time() - began)
    alone = team.world.size == 1
    if team.device.type != "cuda":
        return Clock(age=age, alone=alone)
    return DeviceClock(age=age, alone=alone, timeout=team.timeout)
