"""A profile from `paceline profile`: the phases of a step, the gradient buckets, the link. Written and read here."""

import dataclasses
import statistics
from dataclasses import dataclass
from typing import Any

from paceline.core.errors import RunError
from paceline.records.folder import RunFolder
from paceline.records.old_keys import rename_old_keys
from paceline.records.schema import fits, parse_as
from paceline.records.writer import write_json

VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSteps:
    """Seconds of the steps of one rank by phase (records.phases.CLOCK_STEP_PHASES): one number per step in each."""

    data: tuple[float, ...]
    copy: tuple[float, ...]
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    """From the start of the backward pass to the last gradient of this rank."""
    grad_sync: tuple[float, ...]
    """From then to the return of the backward pass: exposed communication, and waiting for slower ranks."""
    update: tuple[float, ...]
    step: tuple[float, ...]
    """The whole step, from asking for the batch to the end of the update."""

    @property
    def compute(self) -> tuple[float, ...]:
        """Seconds of computing: everything but the gradient synchronisation."""
        return tuple(step - waited for step, waited in zip(self.step, self.grad_sync, strict=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfiledBucket:
    """A gradient bucket. Times are medians over steps and ranks, in seconds after the start of the backward pass."""

    bytes: int
    """Size in the model; compressed gradients are sent in fewer bytes."""
    ready: float
    """When the gradients were ready, in steps without communication."""
    ready_real: float
    """The same in real steps."""
    done_real: float
    """When the average over all ranks was ready, in real steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkPoint:
    """All-reduces of one size, several started at once; `bytes` is the size of each, `samples` the seconds for all."""

    bytes: int
    in_flight: int
    samples: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """The median."""
        return statistics.median(self.samples)


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """The measurements for explaining and predicting steps: `free` steps without communication, `real` ones with it."""

    world_size: int
    ranks_per_node: tuple[int, ...]
    """Ranks on each node, the lead's first."""
    mode: str
    backend: str
    """gloo, nccl, or "none" for a lone rank."""
    device: str
    """cpu or cuda."""
    model: str
    precision: str
    compress: str
    parameters: int
    gradient_bytes: int
    global_batch: int
    samples_per_rank: int
    accumulate: int
    threads: int
    free: tuple[RankSteps, ...]
    """By rank."""
    real: tuple[RankSteps, ...]
    """By rank; free and real steps alternate, so that drift of the machine affects both equally."""
    buckets: tuple[ProfiledBucket, ...]
    """In the order in which they are sent."""
    link: tuple[LinkPoint, ...]
    latency: float
    """Latency of one message in seconds: a small all-reduce divided by its 2·(W-1) messages; 0 for a lone rank."""
    bandwidth: float
    """Bus bandwidth in bytes per second, from large all-reduces two at a time; 0 for a lone rank."""

    @property
    def compute_means(self) -> tuple[float, ...]:
        """Mean seconds that each rank computes in a step without communication."""
        return tuple(statistics.fmean(rank.compute) for rank in self.free)

    @property
    def compute_spreads(self) -> tuple[float, ...]:
        """Standard deviation of the same from step to step, by rank."""
        return tuple(statistics.pstdev(rank.compute) for rank in self.free)


def write_profile(folder: RunFolder, profile: Profile) -> None:
    """Write a profile to a run folder. Only the lead calls it."""
    write_json(folder.profile, {"version": VERSION} | dataclasses.asdict(profile))


def read_profile(folder: RunFolder) -> Profile:
    """Read the profile of a run; a missing or damaged one is an error."""
    if not folder.profile.is_file():
        raise RunError(
            f"{folder.path} has no profile", hint="to measure one: paceline profile, or paceline train --profile"
        )
    try:
        values = parse_as(dict[str, Any], folder.profile.read_bytes())
        version = values.pop("version")
        if version == VERSION:
            return _from_json(values)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as cause:
        raise RunError(
            f"{folder.profile} is damaged: {type(cause).__name__}: {cause}", hint="measure it again: paceline profile"
        ) from cause
    raise RunError(
        f"{folder.profile} is of version {version}, this Paceline reads {VERSION}",
        hint="measure it again: paceline profile",
    )


def _from_json(values: dict[str, Any]) -> Profile:
    parts = {"free": RankSteps, "real": RankSteps, "buckets": ProfiledBucket, "link": LinkPoint}
    values |= {name: [rename_old_keys(part) for part in values[name]] for name in parts}
    if not fits(values, Profile):
        raise ValueError("a value is missing or of another type")
    for name, kind in parts.items():
        values[name] = tuple(kind(**_tuples(part)) for part in values[name])
    return Profile(**_tuples(values))


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
