"""What `paceline profile` measured: the parts of a step, the buckets of gradients, the link. Read back as written."""

import dataclasses
import json
import statistics
from dataclasses import dataclass
from typing import Any

from paceline.core.errors import RunError
from paceline.records.folder import RunFolder
from paceline.records.writer import write_json

VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class RankSteps:
    """Seconds that the steps of one rank took, part by part: one number per step in each, the steps in order."""

    data: tuple[float, ...]
    """Waiting for the batch."""
    copy: tuple[float, ...]
    """Moving it to the device."""
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    """From the start of the backward pass until the last gradient of this rank was there."""
    exchange: tuple[float, ...]
    """From then until the backward pass returned: communication that nothing hides, and waiting for slower ranks."""
    update: tuple[float, ...]
    step: tuple[float, ...]
    """The whole step, from asking for the batch to the end of the update."""

    @property
    def compute(self) -> tuple[float, ...]:
        """What a rank does alone: everything but the exchange."""
        return tuple(step - exchange for step, exchange in zip(self.step, self.exchange, strict=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class Bucket:
    """Gradients that travel together. Times are medians over steps and ranks, in seconds after the backward began."""

    bytes: int
    """As the model holds them; what travels is less where they are compressed."""
    ready: float
    """When the gradients were there, in steps without communication."""
    ready_real: float
    """The same in real steps."""
    done_real: float
    """When the average over all ranks was there, in real steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkPoint:
    """All-reduces of one size, so many started at once; `bytes` is of each, `samples` are seconds until all ended."""

    bytes: int
    in_flight: int
    samples: tuple[float, ...]

    @property
    def seconds(self) -> float:
        """The median."""
        return statistics.median(self.samples)


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Everything that explaining a step and predicting others needs. `free` steps exchange nothing, `real` ones do."""

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
    images_per_rank: int
    accumulate: int
    threads: int
    free: tuple[RankSteps, ...]
    """By rank."""
    real: tuple[RankSteps, ...]
    """By rank; a free and a real step take turns, so that drift of the machine hits both alike."""
    buckets: tuple[Bucket, ...]
    """In the order in which they are sent."""
    link: tuple[LinkPoint, ...]
    latency: float
    """Seconds of one message of almost nothing: a small all-reduce divided by its 2·(W-1) messages; 0 when alone."""
    bandwidth: float
    """Bus bandwidth in bytes per second, from large all-reduces two at a time; 0 when alone."""

    @property
    def compute_means(self) -> tuple[float, ...]:
        """Mean seconds that each rank computes in a step without communication."""
        return tuple(statistics.fmean(rank.compute) for rank in self.free)

    @property
    def compute_spreads(self) -> tuple[float, ...]:
        """Standard deviation of the same from step to step, by rank."""
        return tuple(statistics.pstdev(rank.compute) for rank in self.free)


def write_profile(folder: RunFolder, profile: Profile) -> None:
    """Leave a profile in a run folder. Only the lead calls it."""
    write_json(folder.profile, {"version": VERSION} | dataclasses.asdict(profile))


def read_profile(folder: RunFolder) -> Profile:
    """Return the profile of a run, or say why there is none."""
    if not folder.profile.is_file():
        raise RunError(
            f"{folder.path} has no profile", hint="paceline profile measures one; so does paceline train --profile"
        )
    try:
        values = json.loads(folder.profile.read_text(encoding="utf-8"))
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
    parts = {"free": RankSteps, "real": RankSteps, "buckets": Bucket, "link": LinkPoint}
    for name, kind in parts.items():
        values[name] = tuple(kind(**_tuples(part)) for part in values[name])
    return Profile(**_tuples(values))


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
