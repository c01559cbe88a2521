"""Where the time of a rank goes: a lap per phase, each a reading of the clock and an addition."""

import time

PHASES = ("data", "forward", "backward", "update", "evaluate", "save", "record", "start")
TRAINING_PHASES = PHASES[:4]
DATA, FORWARD, BACKWARD, UPDATE, EVALUATE, SAVE, RECORD, START = range(len(PHASES))


class Clock:
    """Laps add up to the time since the start: each moment belongs to exactly one phase."""

    def __init__(self) -> None:
        self._totals = [0.0] * len(PHASES)
        self.started = self.now = time.perf_counter()

    def lap(self, phase: int) -> None:
        """Book the time since the last lap on a phase."""
        now = time.perf_counter()
        self._totals[phase] += now - self.now
        self.now = now

    @property
    def seconds(self) -> float:
        """Seconds from the start to the last lap."""
        return self.now - self.started

    def totals(self) -> dict[str, float]:
        """Return the seconds of each phase so far."""
        return dict(zip(PHASES, self._totals, strict=True))
