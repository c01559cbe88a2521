"""What a run has to tell, gathered from its records: who took part, how it learned, where its time went."""

from dataclasses import dataclass
from typing import Any

from paceline.analysis.evidence import Finding
from paceline.analysis.explain import explain
from paceline.analysis.phases import TimeSplit
from paceline.core.units import plural, rate
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
        """Ranks and nodes in words."""
        ranks = plural(self.num_ranks, "rank")
        return ranks if self.num_nodes == 1 else f"{ranks} on {plural(self.num_nodes, 'node')}"


def tell(story: Story) -> str:
    """Return the run in a sentence: what it reached, how fast."""
    summary = story.summary
    score = summary.test or summary.best
    reached = (
        f"{100 * score['top1']:.1f}% of the {'test' if summary.test else 'held-out'} images right" if score else ""
    )
    speed = "" if summary.images_per_s is None else f"{rate(summary.images_per_s)} images a second on {story.where}"
    parts = [part for part in (reached, speed) if part]
    return ", ".join(parts) if parts else f"nothing measured yet: the run is {summary.state.lower()}"


def contrast(first: Story, second: Story) -> str | None:
    """Return in a sentence how much slower the slower of two runs is, and which part of a step makes the difference."""
    if first.split is None or second.split is None:
        return None
    fast, slow = sorted((first, second), key=lambda story: story.image_seconds or 0.0)
    assert fast.split is not None
    assert slow.split is not None
    ratio = (slow.image_seconds or 0.0) / (fast.image_seconds or 1.0)
    if ratio < 1 + SAME:
        return f"{fast.label} and {slow.label} are equally fast, within {100 * (ratio - 1):.0f}%"
    gains = {
        phase: float(slow.split.steady.per_step(phase).mean()) / slow.summary.config.global_batch
        - float(fast.split.steady.per_step(phase).mean()) / fast.summary.config.global_batch
        for phase in PHASE_WORDS
    }
    cause = max(gains, key=lambda phase: gains[phase])
    seconds = slow.split.steady.per_step(cause).mean()
    share = min(1.0, gains[cause] / sum(value for value in gains.values() if value > 0))
    return (
        f"an image takes {ratio:.1f}× as long with {slow.label} as with {fast.label}: {PHASE_WORDS[cause]} is "
        f"{1000 * seconds:.0f} of the {1000 * slow.split.steady.step.mean():.0f} ms of a step "
        f"and {100 * share:.0f}% of the difference"
    )
