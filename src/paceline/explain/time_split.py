"""The time of a run by phase and rank: records summed over its intervals, one in memory at a time."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline.records.phases import PHASES, STEP_PHASES, PhaseRecord, RankFacts

Ranks = NDArray[np.float64]
"""One number per rank."""
NUMBERS_PENDING = 512
"""Ranks × records that are added together."""
STEP_ROWS = [4 + list(PHASES).index(phase) for phase in STEP_PHASES]
"""Where the phases of a step are in a table of running sums."""
REMAINDER = "remainder"
"""Time outside all phases."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseTotals:
    """Phases summed over intervals; everything but `steps` by rank, in seconds."""

    steps: int
    seconds: Ranks
    phases: Mapping[str, Ranks]
    """By phase, including REMAINDER: their sum is `seconds`."""
    last: Ranks
    """Number of steps in which the others waited for this rank."""
    cpu: Ranks
    cpu_wait: Ranks
    """Seconds in which a thread was runnable, but had no core (run-queue delay)."""

    def per_step(self, phase: str) -> Ranks:
        """Return the mean seconds of a phase in a step."""
        return self.phases[phase] / max(self.steps, 1)

    @property
    def step(self) -> Ranks:
        """Mean seconds of a step, without the phases around steps."""
        return sum((self.per_step(phase) for phase in STEP_PHASES), start=np.zeros_like(self.seconds))


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeSplit:
    """The time of one start of a run, from the start of its first rank to the last record."""

    facts: RankFacts
    total: PhaseTotals
    steady_state: PhaseTotals
    """Without the first interval (warm-up), and without the time after the last step."""
    evaluating: float
    """Seconds of evaluation between steps, the mean over the ranks."""
    num_intervals: int = 0
    """Intervals of the steady state."""
    deviation: float = 0.0
    """Standard deviation of the seconds per step from interval to interval."""
    num_starts: int = 1
    """Starts of the run that have records; these are the times of the last one."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.facts.hosts)


def split_time(records: Iterable[RankFacts | PhaseRecord]) -> TimeSplit | None:
    """Sum the records of a run's last start that has any; None if there are none."""
    found: _Collected | None = None
    for record in records:
        if isinstance(record, RankFacts):
            earlier, found = found, _Collected(record)
            if earlier is not None:
                found.earlier = earlier if earlier.count else earlier.earlier
            found.num_starts = 1 + (found.earlier.num_starts if found.earlier is not None else 0)
        elif found is not None and len(record.seconds) == len(found.facts.hosts):
            found.add(record)
    if found is not None and not found.count and found.earlier is not None:
        found = found.earlier
    return None if found is None or not found.count else found.split()


@dataclass(kw_only=True, slots=True)
class _Adder:
    """Running sums: rows are seconds, cpu, cpu_wait, last, then the phases; columns are ranks."""

    table: NDArray[np.float64]
    steps: int = 0
    count: int = 0
    pending: list[list[list[float]]] = field(default_factory=list)
    """Records that are not in the table yet: adding arrays one by one would take most of the time."""
    pending_steps: list[int] = field(default_factory=list)
    step_times: list[float] = field(default_factory=list)
    """Seconds per step of each interval, the mean over the ranks."""

    def add(self, record: PhaseRecord) -> None:
        phases = record.phases
        rows = [record.seconds, record.cpu, record.cpu_wait, record.last]
        self.pending.append([*rows, *[phases[phase] for phase in PHASES]])
        self.pending_steps.append(record.steps)
        self.steps += record.steps
        self.count += 1
        if len(self.pending) * self.table.shape[1] >= NUMBERS_PENDING:
            self.fold()

    def fold(self) -> None:
        if self.pending:
            records = np.array(self.pending)
            self.table += records.sum(axis=0)
            in_steps = records[:, STEP_ROWS].sum(axis=1).mean(axis=1)
            self.step_times += (in_steps / np.maximum(self.pending_steps, 1)).tolist()
            self.pending.clear()
            self.pending_steps.clear()

    def deviation(self) -> float:
        """Return the standard deviation of the seconds per step between intervals."""
        self.fold()
        return float(np.std(self.step_times, ddof=1)) if len(self.step_times) > 1 else 0.0

    def sums(self) -> PhaseTotals:
        self.fold()
        seconds, cpu, cpu_wait, last = self.table[:4]
        phases: dict[str, Ranks] = dict(zip(PHASES, self.table[4:], strict=True))
        phases[REMAINDER] = seconds - self.table[4:].sum(axis=0)
        return PhaseTotals(steps=self.steps, seconds=seconds, phases=phases, last=last, cpu=cpu, cpu_wait=cpu_wait)


@dataclass(slots=True)
class _Collected:
    """The records of one start."""

    facts: RankFacts
    earlier: "_Collected | None" = None
    num_starts: int = 1
    steady_state: _Adder = field(init=False)
    first: _Adder = field(init=False)
    end: _Adder = field(init=False)

    def __post_init__(self) -> None:
        shape = 4 + len(PHASES), len(self.facts.hosts)
        self.first, self.steady_state, self.end = (_Adder(table=np.zeros(shape)) for _ in range(3))

    def add(self, record: PhaseRecord) -> None:
        kind = self.end if not record.steps else self.steady_state if self.first.count else self.first
        kind.add(record)

    @property
    def count(self) -> int:
        return self.first.count + self.steady_state.count + self.end.count

    def split(self) -> TimeSplit:
        total = _joined(self.first, self.steady_state, self.end)
        steady = self.steady_state if self.steady_state.count else total  # there is only one interval
        between = _joined(self.first, self.steady_state).sums()
        return TimeSplit(
            facts=self.facts,
            total=total.sums(),
            steady_state=steady.sums(),
            evaluating=float(between.phases["evaluate"].mean()),
            num_intervals=self.steady_state.count,
            deviation=self.steady_state.deviation(),
            num_starts=self.num_starts,
        )


def _joined(*adders: _Adder) -> _Adder:
    """Return the sums of several adders as one."""
    for adder in adders:
        adder.fold()
    steps, count = (sum(numbers) for numbers in zip(*((adder.steps, adder.count) for adder in adders), strict=True))
    return _Adder(table=sum((adder.table for adder in adders[1:]), start=adders[0].table), steps=steps, count=count)
