"""Where the time of every rank went: the names of the phases, the records of an interval, and reading them back."""

import dataclasses
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.records.folder import RunFolder

STEP_PHASES: tuple[str, ...] = ("data", "copy", "forward", "backward", "communication", "straggler", "update")
"""Of a step: waiting for data; moving it to the device; the passes; waiting for gradients on the way after the backward
pass has computed everything; waiting there for ranks that are later; applying the gradients."""
OTHER_PHASES: tuple[str, ...] = ("start", "evaluate", "save", "record")
"""Around steps: start-up, evaluation, checkpoints; and records, trackers and what ranks tell each other."""
PHASES: tuple[str, ...] = STEP_PHASES + OTHER_PHASES


@dataclass(frozen=True, kw_only=True, slots=True)
class RankFacts:
    """What the ranks of one start of a run are: written before their first interval."""

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
    """Bytes of gradients that a rank sends into one step, before any compression."""
    global_batch: int
    num_devices: int | None = None
    """Devices of all ranks together, more than the ranks only with dp; None in folders that do not say."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseRecord:
    """The seconds of an interval, by phase and rank. What no phase holds is `seconds` less their sum."""

    step: int
    """The last step of the interval; the record after the last one covers what came after the steps."""
    steps: int
    seconds: list[float]
    """Length of the interval, by rank."""
    phases: dict[str, list[float]]
    """By phase, then by rank."""
    last: list[int]
    """In how many steps each rank was the one for whose gradients the others waited."""
    cpu: list[float]
    """CPU-seconds of all threads of each rank."""
    starved: list[float]
    """Seconds in which a thread of each rank had work, but no core to do it on: of the thread that lost most."""

    def __add__(self, later: "PhaseRecord") -> "PhaseRecord":
        """Return both intervals as one."""
        return PhaseRecord(
            step=later.step,
            steps=self.steps + later.steps,
            seconds=_summed(self.seconds, later.seconds),
            phases={phase: _summed(self.phases[phase], later.phases[phase]) for phase in self.phases},
            last=[own + other for own, other in zip(self.last, later.last, strict=True)],
            cpu=_summed(self.cpu, later.cpu),
            starved=_summed(self.starved, later.starved),
        )


def _summed(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [round(own + other, 6) for own, other in zip(first, second, strict=True)]


def as_json(entry: RankFacts | PhaseRecord) -> dict[str, Any]:
    """Return a record as one line of phases.jsonl."""
    return {"kind": "ranks" if isinstance(entry, RankFacts) else "phases"} | {
        field.name: getattr(entry, field.name) for field in dataclasses.fields(entry)
    }


def read_phases(folder: RunFolder) -> Iterator[RankFacts | PhaseRecord]:
    """Yield the records of a run in order, one at a time; a line that a crash cut off or damaged is left out."""
    if not folder.phases.is_file():
        return
    kinds = {"ranks": RankFacts, "phases": PhaseRecord}
    with folder.phases.open(encoding="utf-8") as lines:
        for line in lines:
            try:
                values = json.loads(line)
                yield kinds[values.pop("kind")](**values)
            except (ValueError, TypeError, KeyError, AttributeError):
                continue
