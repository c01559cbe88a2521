"""Where the time of a rank goes: a lap per phase. On a CPU a lap reads the clock, on a GPU it records an event."""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Variable

from paceline.parallel.team import Team

LAPS = ("data", "copy", "forward", "backward", "exchange", "update", "start", "evaluate", "save", "record")
"""As `records.phases` names them, but for "exchange": how much of it is waiting for a later rank, only all ranks
together can tell."""
DATA, COPY, FORWARD, BACKWARD, EXCHANGE, UPDATE, START, EVALUATE, SAVE, RECORD = range(len(LAPS))

NEXT = {
    DATA: "the forward pass", COPY: "the forward pass", FORWARD: "the backward pass",
    BACKWARD: "the exchange of gradients", EXCHANGE: "the update", RECORD: "waiting for data",
}  # fmt: skip
"""What a rank does after a lap, where the lap alone does not say it."""


class Clock:
    """Laps add up to the time since the start: each moment belongs to exactly one phase."""

    def __init__(self, *, age: float = 0.0, alone: bool = False) -> None:
        """`age` is how long ago the first lap began. A rank that is `alone` waits for nobody's gradients."""
        self._alone = alone
        self._totals = [0.0] * len(LAPS)
        self._waits: list[float] = []
        self._waited = 0.0
        self.started = self.now = time.perf_counter() - age
        self._last = RECORD
        self.before_backward: Callable[[], None] | None = None

    def lap(self, phase: int) -> None:
        """Book the time since the last lap on a phase. The lap of the update ends a step."""
        before, self.now = self.now, time.perf_counter()
        self._book(phase, self.now - before)
        self._last = phase

    def watch(self, loss: Tensor) -> None:
        """End the lap of the backward pass of this loss when this rank has computed all of its gradients.

        Autograd calls back in the order in which it was asked to, and the loss is where a backward pass begins: this
        call comes before the one in which DDP or FSDP waits for the other ranks.
        """
        if not self._alone:
            loss.register_hook(self._expect_end)
        if self.before_backward is not None:
            self.before_backward()

    @property
    def doing(self) -> str:
        """What comes after the phase that was booked last."""
        return NEXT.get(self._last, "the records")

    @property
    def seconds(self) -> float:
        """Seconds from the start to the last lap."""
        return self.now - self.started

    def totals(self) -> list[float]:
        """Return the seconds of each kind of lap so far."""
        return list(self._totals)

    def take_waits(self) -> list[float]:
        """Return the seconds of the exchange in each step since the last call."""
        waits, self._waits = self._waits, []
        return waits

    def _expect_end(self, _gradient: Tensor) -> None:
        Variable._execution_engine.queue_callback(self._end_backward)  # noqa: SLF001 - as torch's own FSDP does

    def _end_backward(self) -> None:
        self.lap(BACKWARD)

    def _book(self, phase: int, seconds: float) -> None:
        self._totals[BACKWARD if self._alone and phase == EXCHANGE else phase] += seconds
        if phase == UPDATE:
            self._waits.append(self._totals[EXCHANGE] - self._waited)
            self._waited = self._totals[EXCHANGE]


class DeviceClock(Clock):
    """Laps of a GPU, which runs behind the program: events are recorded on the way and read once per interval.

    An event that is recorded while the device has nothing to do happens at once, so that time in which the device waits
    for data or a checkpoint is booked on those, and time in which it still computes is not.
    """

    def __init__(
        self,
        new_event: Callable[[], Any] = lambda: torch.cuda.Event(enable_timing=True),
        *,
        age: float = 0.0,
        alone: bool = False,
    ) -> None:
        super().__init__(age=age, alone=alone)
        self._book(START, age)
        self._new_event = new_event
        self._spare: list[Any] = []
        self._pending: list[tuple[int, Any]] = []
        self._anchor = self._recorded()

    def lap(self, phase: int) -> None:
        """Mark the end of a phase on the device, without waiting for it."""
        self._pending.append((phase, self._recorded()))
        self.now = time.perf_counter()
        self._last = phase

    def totals(self) -> list[float]:
        """Wait for the device, and return the seconds of each kind of lap so far."""
        if self._pending:
            self._pending[-1][1].synchronize()
        for phase, event in self._pending:
            self._book(phase, self._anchor.elapsed_time(event) / 1e3)
            self._spare.append(self._anchor)
            self._anchor = event
        self._pending.clear()
        return super().totals()

    def take_waits(self) -> list[float]:
        """Wait for the device, and return the seconds of the exchange in each step since the last call."""
        self.totals()
        return super().take_waits()

    def _recorded(self) -> Any:
        event = self._spare.pop() if self._spare else self._new_event()
        event.record()
        return event


def clock_for(team: Team, *, began: float | None) -> Clock:
    """Return the clock that suits a rank; it counts from the moment `began`, in seconds since 1970, or from now."""
    age = 0.0 if began is None else max(0.0, time.time() - began)
    alone = team.world.size == 1
    return DeviceClock(age=age, alone=alone) if team.device.type == "cuda" else Clock(age=age, alone=alone)
