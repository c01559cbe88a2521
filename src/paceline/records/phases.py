"""The phases of every rank: the table of phases, the records of an interval, and reading them back."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from paceline.records.folder import RunFolder
from paceline.records.schema import file_lines, fits, parse_as


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """A phase of a rank's time; its name is its key in files."""

    name: str
    label: str
    """Label in tables and figures."""
    text: str
    """Name in a sentence."""
    kind: Literal["compute", "wait", "around"]
    """Kind: computing or waiting in a step, or time outside the steps."""

    @property
    def css_class(self) -> str:
        """The class of its bar in report/templates/style.css."""
        return self.name


PHASES: Mapping[str, Phase] = {
    phase.name: phase
    for phase in (
        Phase(name="data", label="data wait", text="waiting for data", kind="wait"),
        Phase(name="copy", label="copy", text="copying to the device", kind="compute"),
        Phase(name="forward", label="forward", text="the forward pass", kind="compute"),
        Phase(name="backward", label="backward", text="the backward pass", kind="compute"),
        Phase(name="communication", label="exposed communication", text="exposed communication", kind="wait"),
        Phase(name="straggler", label="waiting for slower ranks", text="waiting for slower ranks", kind="wait"),
        Phase(name="update", label="update", text="the update", kind="compute"),
        Phase(name="start", label="start-up", text="start-up", kind="around"),
        Phase(name="evaluate", label="evaluation", text="evaluation", kind="around"),
        Phase(name="save", label="checkpoints", text="writing checkpoints", kind="around"),
        Phase(name="record", label="records and trackers", text="the records", kind="around"),
    )
}
"""Every phase by name, in the order of a step. Each moment of a rank belongs to exactly one."""
STEP_PHASES = tuple(phase.name for phase in PHASES.values() if phase.kind != "around")
COMPUTE_PHASES = tuple(phase.name for phase in PHASES.values() if phase.kind == "compute")
WAIT_PHASES = tuple(phase.name for phase in PHASES.values() if phase.kind == "wait")
OTHER_PHASES = tuple(phase.name for phase in PHASES.values() if phase.kind == "around")

GRAD_SYNC_PHASE = Phase(name="grad_sync", label="gradient sync", text="gradient synchronisation", kind="wait")
"""From a rank's last gradient to the averaged ones: communication plus straggler, which only the times of all ranks
can separate."""


def _of_one_rank(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(GRAD_SYNC_PHASE.name if name in {"communication", "straggler"} else name for name in names)
    )


CLOCK_PHASES = _of_one_rank(PHASES)
"""Phases that a rank measures by itself."""
CLOCK_STEP_PHASES = _of_one_rank(STEP_PHASES)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFacts:
    """Facts about the ranks of one start of a run, written before their first interval."""

    first_step: int
    """Steps done before."""
    hosts: list[str]
    """By rank, as everything below."""
    threads: list[int]
    cores: list[int]
    """CPU cores that the rank may use."""
    mode: str
    device: str
    parameters: int
    gradient_bytes: int
    """Bytes of gradients per rank and step, before any compression."""
    global_batch: int
    num_devices: int | None = None
    """Number of devices of all ranks, more than the ranks only with dp; None in older run folders."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseRecord:
    """The seconds of an interval, by phase and rank. Time outside all phases is `seconds` less their sum."""

    step: int
    """The last step of the interval; a final record covers the time after the steps."""
    steps: int
    seconds: list[float]
    """Length of the interval, by rank."""
    phases: dict[str, list[float]]
    """By phase, then by rank."""
    last: list[int]
    """Number of steps in which each rank was the last to finish its backward pass."""
    cpu: list[float]
    """CPU-seconds of all threads of each rank."""
    cpu_wait: list[float]
    """Run-queue wait (schedstat) of each rank's most delayed thread, in seconds."""

    def __add__(self, later: "PhaseRecord") -> "PhaseRecord":
        """Return both intervals as one."""
        return PhaseRecord(
            step=later.step,
            steps=self.steps + later.steps,
            seconds=_summed(self.seconds, later.seconds),
            phases={phase: _summed(self.phases[phase], later.phases[phase]) for phase in self.phases},
            last=[own + other for own, other in zip(self.last, later.last, strict=True)],
            cpu=_summed(self.cpu, later.cpu),
            cpu_wait=_summed(self.cpu_wait, later.cpu_wait),
        )


def _summed(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [round(own + other, 6) for own, other in zip(first, second, strict=True)]


def phases_as_json(entry: RankFacts | PhaseRecord) -> dict[str, Any]:
    """Return a record as one line of phases.jsonl."""
    values: dict[str, Any] = {"kind": "ranks" if isinstance(entry, RankFacts) else "phases"}
    return values | {field.name: getattr(entry, field.name) for field in dataclasses.fields(entry)}


def read_phases(folder: RunFolder) -> Iterator[RankFacts | PhaseRecord]:
    """Yield the records of a run in order, one at a time; a line that a crash cut off or damaged is left out."""
    kinds = {"ranks": RankFacts, "phases": PhaseRecord}
    for line in file_lines(folder.phases):
        with suppress(ValueError, TypeError, KeyError):
            values = parse_as(dict[str, Any], line)
            kind = kinds[values.pop("kind")]
            if fits(values, kind):
                entry = kind(**values)
                if _is_even(entry):
                    yield entry


def _is_even(entry: RankFacts | PhaseRecord) -> bool:
    """Tell whether a record has every phase, and one value for each rank everywhere."""
    if isinstance(entry, RankFacts):
        lists = [entry.hosts, entry.threads, entry.cores]
    elif not PHASES.keys() <= entry.phases.keys():
        return False
    else:
        lists = [entry.seconds, entry.last, entry.cpu, entry.cpu_wait, *entry.phases.values()]
    return len({len(values) for values in lists}) == 1 and len(lists[0]) > 0
