"""What a run has to tell, gathered from its records: who took part, how it learned, where its time went."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from paceline.analysis.evidence import Finding
from paceline.analysis.explain import explain
from paceline.analysis.phases import TimeSplit
from paceline.core.units import count, plural, rate
from paceline.records.profile import Profile
from paceline.records.reader import RunSummary

PHASE_WORDS = {
    "data": "waiting for data",
    "copy": "copying to the device",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "communication": "communication that nothing hides",
    "straggler": "waiting for slower ranks",
    "update": "the update",
}
WAITS = ("data", "communication", "straggler")
DEVICES_OF_DP = re.compile(r"^dp \(.*over (\d+) devices?")
"""Where folders that do not have the number of devices by itself say it: in the mode."""
SAME = 0.05
"""Differences below this share are not worth a sentence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Story:
    """A run as a page tells it."""

    label: str
    summary: RunSummary
    records: list[dict[str, Any]]
    split: TimeSplit | None
    profile: Profile | None
    environments: list[dict[str, Any]]

    @property
    def num_ranks(self) -> int:
        """Ranks of its last start."""
        if self.split is not None:
            return self.split.world_size
        return self.environments[-1].get("world_size", 1) if self.environments else 1

    @property
    def num_devices(self) -> int:
        """Devices of its last start: as many as ranks, but with dp those of its only rank."""
        if self.split is not None and self.split.facts.num_devices is not None:
            return self.split.facts.num_devices
        environment = self.environments[-1] if self.environments else {}
        in_words = DEVICES_OF_DP.search(environment.get("mode", ""))
        return environment.get("num_devices") or (int(in_words[1]) if in_words else self.num_ranks)

    @property
    def num_nodes(self) -> int:
        """Hosts of its last start."""
        return len(set(self.split.facts.hosts)) if self.split is not None else 1

    @property
    def image_seconds(self) -> float | None:
        """Seconds for an image, over all ranks together; None before the first step."""
        if self.split is None:
            return None
        return float(self.split.steady.step.mean()) / self.summary.config.global_batch

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What limits it, the dearest first, as `paceline explain` says."""
        return () if self.split is None else explain(self.split, self.summary.config, self.profile)

    @property
    def where(self) -> str:
        """Ranks and nodes, or the devices of a lone rank, in words."""
        if self.num_devices > self.num_ranks:
            return f"{plural(self.num_devices, 'device')} of one process"
        ranks = plural(self.num_ranks, "rank")
        return ranks if self.num_nodes == 1 else f"{ranks} on {plural(self.num_nodes, 'node')}"


def tell(story: Story) -> str:
    """Return the run in a sentence: what it reached, how fast."""
    summary = story.summary
    score = summary.test or summary.best
    reached = ""
    if score:
        some = f"{count(score['images'])} of " if score["images"] < score["split_images"] else ""
        reached = f"{100 * score['top1']:.1f}% of {some}the {'test' if summary.test else 'held-out'} images right"
    speed = "" if summary.images_per_s is None else f"{rate(summary.images_per_s)} images a second on {story.where}"
    parts = [part for part in (reached, speed) if part]
    return ", ".join(parts) if parts else f"nothing measured yet: the run is {summary.state.lower()}"


def contrast(first: Story, second: Story) -> str | None:
    """Return in a sentence what the second run gains or loses beside the first, and which part of a step costs it."""
    if first.split is None or second.split is None:
        return None
    before, after = first.image_seconds or 1.0, second.image_seconds or 1.0
    ratio, devices = before / after, second.num_devices / first.num_devices
    if max(ratio, 1 / ratio) < 1 + SAME:
        return f"{second.label} is as fast as {first.label}, within {100 * (max(ratio, 1 / ratio) - 1):.0f}%"
    if ratio > 1 and devices > 1:
        return (
            f"{second.label}: {ratio:.2f}× as fast as {first.label} on {devices:g}× the devices, "
            f"{100 * ratio / devices:.0f}% efficient; {_dearest(second.split, WAITS)}"
        )
    slow, fast = (second, first) if ratio < 1 else (first, second)
    longer = max(ratio, 1 / ratio)
    how = f"{longer:.1f}× as long with {slow.label} as" if longer >= 1.5 else f"{_more(longer)} with {slow.label} than"
    return f"an image takes {how} with {fast.label}: {_cause(slow, fast)}"


def _more(ratio: float) -> str:
    return f"{100 * (ratio - 1):.0f}% longer"


def _dearest(split: TimeSplit, phases: Iterable[str]) -> str:
    """Return the phase that costs most, in words."""
    phase = max(phases, key=lambda phase: float(split.steady.per_step(phase).mean()))
    return _of_step(split, phase)


def _of_step(split: TimeSplit, phase: str) -> str:
    seconds = float(split.steady.per_step(phase).mean())
    return f"{PHASE_WORDS[phase]} is {1000 * seconds:.0f} of the {1000 * split.steady.step.mean():.0f} ms of a step"


def _cause(slow: Story, fast: Story) -> str:
    """Return which part of a step makes the difference, and how much of it."""
    assert slow.split is not None
    assert fast.split is not None
    gains = {
        phase: float(slow.split.steady.per_step(phase).mean()) / slow.summary.config.global_batch
        - float(fast.split.steady.per_step(phase).mean()) / fast.summary.config.global_batch
        for phase in PHASE_WORDS
    }
    phase = max(gains, key=lambda phase: gains[phase])
    share = gains[phase] / sum(value for value in gains.values() if value > 0)
    return f"{_of_step(slow.split, phase)} and {100 * share:.0f}% of what is added"
