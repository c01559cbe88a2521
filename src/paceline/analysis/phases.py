"""Where the time of a run went: phases summed over its intervals, rank by rank, one record in memory at a time."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline.records.phases import PHASES, STEP_PHASES, PhaseRecord, RankFacts

Ranks = NDArray[np.float64]
"""A number for every rank."""
REMAINDER = "remainder"
"""What no phase holds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sums:
    """Intervals added up; everything but `steps` by rank, in seconds."""

    steps: int
    seconds: Ranks
    phases: Mapping[str, Ranks]
    """By phase, REMAINDER among them: together they are `seconds`."""
    last: Ranks
    """In how many steps the others waited for this rank."""
    cpu: Ranks
    starved: Ranks
    """Seconds in which a thread had work, but no core to do it on."""

    def per_step(self, phase: str) -> Ranks:
        """Return the mean seconds of a phase in a step."""
        return self.phases[phase] / max(self.steps, 1)

    @property
    def step(self) -> Ranks:
        """Mean seconds of a step, without what happens around steps."""
        return sum((self.per_step(phase) for phase in STEP_PHASES), start=np.zeros_like(self.seconds))


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """One interval as means over the ranks, for curves."""

    step: int
    steps: int
    seconds: float
    phases: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeSplit:
    """The time of one start of a run, from its first rank's beginning to the last record."""

    facts: RankFacts
    whole: Sums
    steady: Sums
    """Without the first interval, in which everything warms up, and without what came after the last step."""
    curve: tuple[Moment, ...]

    @property
    def world_size(self) -> int:
        """Return how many ranks there were."""
        return len(self.facts.hosts)


def split_time(records: Iterable[RankFacts | PhaseRecord]) -> TimeSplit | None:
    """Add up the records of a run's last start that came as far as a record; None where there is none."""
    found: _Collected | None = None
    for record in records:
        if isinstance(record, RankFacts):
            earlier, found = found, _Collected(record)
            if earlier is not None and earlier.whole.count:
                found.earlier = earlier
        elif found is not None and len(record.seconds) == len(found.facts.hosts):
            found.add(record)
    if found is not None and not found.whole.count and found.earlier is not None:
        found = found.earlier
    return None if found is None or not found.whole.count else found.split()


@dataclass(kw_only=True, slots=True)
class _Adder:
    """Running sums: rows are seconds, cpu, starved, last, then the phases; columns are ranks."""

    table: NDArray[np.float64]
    steps: int = 0
    count: int = 0

    def add(self, record: PhaseRecord) -> None:
        rows = [record.seconds, record.cpu, record.starved, record.last]
        self.table += np.array([*rows, *(record.phases[phase] for phase in PHASES)])
        self.steps += record.steps
        self.count += 1

    def sums(self) -> Sums:
        seconds, cpu, starved, last = self.table[:4]
        phases: dict[str, Ranks] = dict(zip(PHASES, self.table[4:], strict=True))
        phases[REMAINDER] = seconds - self.table[4:].sum(axis=0)
        return Sums(steps=self.steps, seconds=seconds, phases=phases, last=last, cpu=cpu, starved=starved)


@dataclass(slots=True)
class _Collected:
    """What was read of one start."""

    facts: RankFacts
    earlier: "_Collected | None" = None
    whole: _Adder = field(init=False)
    steady: _Adder = field(init=False)
    curve: list[Moment] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.whole, self.steady = (_Adder(table=np.zeros((4 + len(PHASES), len(self.facts.hosts)))) for _ in range(2))

    def add(self, record: PhaseRecord) -> None:
        self.whole.add(record)
        if record.steps:
            if self.curve:
                self.steady.add(record)
            means = {phase: float(np.mean(record.phases[phase])) for phase in PHASES}
            seconds = float(np.mean(record.seconds))
            self.curve.append(Moment(step=record.step, steps=record.steps, seconds=seconds, phases=means))

    def split(self) -> TimeSplit:
        steady = self.steady if self.steady.count else self.whole  # a run of one interval has nothing better
        return TimeSplit(facts=self.facts, whole=self.whole.sums(), steady=steady.sums(), curve=tuple(self.curve))
