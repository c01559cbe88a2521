"""What a change would bring when gradients are what a step waits for: each change is simulated, none is guessed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from paceline.analysis.fabric import Fabric, Link
from paceline.analysis.measured import measured_link, measured_workload
from paceline.analysis.phases import Sums, TimeSplit
from paceline.analysis.simulate import Workload, simulate_step
from paceline.core.config import Config
from paceline.core.units import bit_rate
from paceline.records.profile import Profile

TIMES_MORE = 4
"""How many times the images of a step a larger batch has."""
FASTER_LINK = 10
BUCKETS_MB = (1, 5, 10, 25, 50, 100)
LEAST_GAIN = 1.03
COMPRESSED = {"none": 1.0, "fp16": 0.5, "bf16": 0.5, "powersgd": 0.1}
"""Part of their bytes that gradients take on the way; for powersgd about that much, by the shapes of the layers."""
TRUSTED = (0.5, 2.0)
"""A profile is believed when the waiting it leads to is this near to what the run saw."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Remedy:
    """Something to try, and how many times as fast the run would be."""

    words: str
    gain: float
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """A step and its exchange of gradients, ready to be simulated."""

    work: Workload
    fabric: Fabric
    ranks: int
    from_profile: bool
    accumulate: int = 1
    """Parts of a step, each of which is the work."""

    @property
    def seconds(self) -> float:
        """Seconds of a step as it is."""
        return self.with_work()

    @property
    def wire_seconds(self) -> float:
        """Seconds that the gradients of a step need on the link."""
        return float(self.fabric.cost(self.work.gradient_bytes, self.ranks).seconds)

    @property
    def exposed(self) -> float:
        """Seconds of a step in which ranks only wait for gradients."""
        return float(simulate_step(self.work, self.fabric, self.ranks, accumulate=self.accumulate).exposed)

    def with_work(self, work: Workload | None = None, *, more: int = 1, speed: float = 1.0) -> float:
        """Return the seconds of a step with other work, `more` times the micro-batches, or a link of another speed."""
        link = replace(self.fabric.inter, bandwidth=self.fabric.inter.bandwidth * speed)
        fabric = replace(self.fabric, inter=link)
        parts = more * self.accumulate
        step = simulate_step(self.work if work is None else work, fabric, self.ranks, accumulate=parts)
        return float(step.seconds)


def exchange_of(split: TimeSplit, config: Config, profile: Profile | None) -> Exchange:
    """Return the step of a run: from its profile where that agrees with the run, or else from its phases alone.

    Phases do not say how much of the exchange hides behind the backward pass. Taken for nothing, a change of the link
    or the bytes brings at least what comes out.
    """
    waited = float(split.steady.per_step("communication").mean())
    plain = _from_phases(split, config, waited)
    if profile is None or profile.world_size != split.world_size or not profile.bandwidth:
        return plain
    work = measured_workload(profile).compressed(COMPRESSED[profile.compress])
    measured = Exchange(
        work=work,
        fabric=Fabric(inter=measured_link(profile)),
        ranks=split.world_size,
        from_profile=True,
        accumulate=profile.accumulate,
    )
    return measured if TRUSTED[0] * waited <= measured.exposed <= TRUSTED[1] * waited else plain


def _from_phases(split: TimeSplit, config: Config, waited: float) -> Exchange:
    steady, ranks = split.steady, split.world_size
    sent = split.facts.gradient_bytes * COMPRESSED[config.compress]
    work = Workload(
        forward=_mean(steady, "forward"),
        backward=_mean(steady, "backward"),
        update=_mean(steady, "update"),
        other=_mean(steady, "data") + _mean(steady, "copy") + _mean(steady, "straggler"),
        ready=(1.0,),
        sizes=(sent,),
        images_per_rank=split.facts.global_batch / ranks,
    )
    bandwidth = 2 * (ranks - 1) / ranks * sent / max(waited, 1e-9)
    return Exchange(work=work, fabric=Fabric(inter=Link(bandwidth=bandwidth)), ranks=ranks, from_profile=False)


def _mean(steady: Sums, phase: str) -> float:
    return float(steady.per_step(phase).mean())


def remedies_of(exchange: Exchange, config: Config) -> tuple[Remedy, ...]:
    """Return what is worth trying against waiting for gradients, the best first; gains are per image."""
    worth = [remedy for remedy in _candidates(exchange, config) if remedy.gain >= LEAST_GAIN]
    return tuple(sorted(worth, key=lambda remedy: -remedy.gain))


def _candidates(exchange: Exchange, config: Config) -> Iterator[Remedy]:
    before, more = exchange.seconds, TIMES_MORE
    batch, parts = more * config.global_batch, more * config.accumulate
    yield Remedy(
        words=f"--global-batch {batch} --accumulate {parts}",
        gain=more * before / exchange.with_work(more=more),
        why=f"{more} times the images for one exchange, in no more memory",
    )
    larger = exchange.work.with_images(more * exchange.work.images_per_rank)
    yield Remedy(
        words=f"--global-batch {batch}",
        gain=more * before / exchange.with_work(larger),
        why=f"{more} times the images for one exchange, where they fit into memory",
    )
    if config.compress == "none":
        half = exchange.work.compressed(COMPRESSED["fp16"])
        yield Remedy(words="--compress fp16", gain=before / exchange.with_work(half), why="half the bytes")
    faster = bit_rate(float(np.mean(exchange.fabric.inter.bandwidth)) * FASTER_LINK)
    yield Remedy(
        words=f"a link of {faster}",
        gain=before / exchange.with_work(speed=FASTER_LINK),
        why=f"{FASTER_LINK} times as fast as this one",
    )
    if exchange.from_profile:
        seconds = {size: exchange.with_work(_with_buckets(exchange.work, size * 1e6)) for size in BUCKETS_MB}
        best = min(seconds, key=lambda size: seconds[size])
        yield Remedy(
            words=f"--bucket-mb {best}", gain=before / seconds[best], why="gradients start to travel at a better moment"
        )


def _with_buckets(work: Workload, size: float) -> Workload:
    """Return the work with buckets of another size: gradients appear evenly between the moments that are known."""
    total = work.gradient_bytes
    known = np.cumsum((0.0, *work.sizes))
    moments = np.array((0.0, *work.ready))
    ends = np.append(np.arange(size, total, size), total)
    ready = tuple(np.interp(ends, known, moments).tolist())
    return replace(work, ready=ready, sizes=tuple(np.diff(ends, prepend=0.0).tolist()))
