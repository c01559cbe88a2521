"""The seconds of a run added up: by phase, by rank, per step."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from paceline.records.phases import OTHER_PHASES, STEP_PHASES, PhaseRecord, RankFacts

REST = "unexplained"


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """Where the time of every rank went."""

    facts: RankFacts
    steps: int
    wall: float
    """Seconds from start to end, mean over ranks."""
    totals: Mapping[str, np.ndarray]
    """Seconds by phase, then by rank."""

    @property
    def num_ranks(self) -> int:
        """Ranks that took part."""
        return len(self.facts.hosts)

    @property
    def step_seconds(self) -> np.ndarray:
        """Mean seconds of a step, by rank."""
        return np.sum([self.per_step(phase) for phase in STEP_PHASES], axis=0)

    @property
    def own_seconds(self) -> np.ndarray:
        """What a rank does in a step by itself, without waiting for gradients or for others: who is slow shows here."""
        return self.step_seconds - self.per_step("communication") - self.per_step("straggler")

    def per_step(self, phase: str) -> np.ndarray:
        """Mean seconds of a phase in a step, by rank."""
        return self.totals[phase] / max(1, self.steps)

    def whole(self) -> dict[str, float]:
        """Return the seconds of the run, mean over ranks: the steps together, everything around them, and the rest."""
        parts = {"steps": float(sum(self.totals[phase].mean() for phase in STEP_PHASES))}
        parts |= {phase: float(self.totals[phase].mean()) for phase in OTHER_PHASES}
        return parts | {REST: max(0.0, self.wall - sum(parts.values()))}


def add_up(entries: Iterable[RankFacts | PhaseRecord]) -> Split | None:
    """Add up the intervals of a run; where it went on with another number of ranks, those of the last number."""
    facts, steps, totals, wall = None, 0, {}, np.zeros(0)
    for entry in entries:
        if isinstance(entry, RankFacts):
            if facts is None or len(facts.hosts) != len(entry.hosts):
                steps, wall = 0, np.zeros(len(entry.hosts))
                totals = {phase: np.zeros(len(entry.hosts)) for phase in STEP_PHASES + OTHER_PHASES}
            facts = entry
        elif facts is not None:
            steps += entry.steps
            wall = wall + np.asarray(entry.seconds)
            for phase, seconds in entry.phases.items():
                totals[phase] = totals[phase] + np.asarray(seconds)
    if facts is None or not steps:
        return None
    return Split(facts=facts, steps=steps, wall=float(wall.mean()), totals=totals)
