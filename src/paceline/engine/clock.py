"""Where the time of a rank goes: a lap per phase, each a reading of the clock and an addition."""

import time

PHASES = ("data", "forward", "backward", "update", "evaluate", "save", "record", "start")
TRAINING_PHASES = PHASES[:4]
DATA, FORWARD, BACKWARD, UPDATE, EVALUATE, SAVE, RECORD, START = range(len(PHASES))

NEXT = {DATA: "the forward pass", FORWARD: "the backward pass", BACKWARD: "the update", RECORD: "waiting for data"}
"""What a rank does after a phase, where the phase alone does not say it."""


class Clock:
    """Laps add up to the time since the start: each moment belongs to exactly one phase."""

    def __init__(self) -> None:
        self._totals = [0.0] * len(PHASES)
        self.started = self.now = time.perf_counter()
        self._last = RECORD

    def lap(self, phase: int) -> None:
        """Book the time since the last lap on a phase."""
        now = time.perf_counter()
        self._totals[phase] += now - self.now
        self.now = now
        self._last = phase

    @property
    def doing(self) -> str:
        """What comes after the phase that was booked last."""
        return NEXT.get(self._last, "the records")

    @property
    def seconds(self) -> float:
        """Seconds from the start to the last lap."""
        return self.now - self.started

    def totals(self) -> dict[str, float]:
        """Return the seconds of each phase so far."""
        return dict(zip(PHASES, self._totals, strict=True))
