"""The data for finding bottlenecks: the numbers of a run, and a bottleneck with its suggestions."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from paceline.core.config import Config
from paceline.explain.suggestions import Suggestion
from paceline.explain.time_split import Ranks, TimeSplit
from paceline.records.profile import Profile

BottleneckKind = Literal[
    "threads",
    "link",
    "slow rank",
    "slow loader",
    "data",
    "checkpoint",
    "evaluation",
    "records",
    "cores",
    "uneven ranks",
]
LEAST = 0.1
"""Fraction of the time from which a bottleneck is reported."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunBottleneck:
    """A bottleneck: its fraction of the time, the symptom in a sentence, and what to try."""

    kind: BottleneckKind
    share: float
    sentence: str
    suggestions: tuple[Suggestion, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunNumbers:
    """The times, settings and profile of a run, and fractions and gains computed from them."""

    split: TimeSplit
    config: Config
    profile: Profile | None

    @property
    def seconds(self) -> float:
        """Seconds of the run after start-up."""
        total = self.split.total
        return float((total.seconds - total.phases["start"]).mean())

    @property
    def step(self) -> float:
        """Seconds of a step."""
        return float(self.split.steady_state.step.mean())

    def share_of_steps(self, seconds_per_step: float) -> float:
        """Return the fraction of the run that these seconds per step amount to."""
        return seconds_per_step * self.split.total.steps / self.seconds

    def gain(self, share: float) -> float:
        """Return the speed-up of the run without a fraction of its time."""
        return 1 / (1 - min(share, 0.99))

    def gain_of_steps(self, gain: float) -> float:
        """Return the speed-up of the run if its steps are faster by a factor."""
        return self.gain(self.share_of_steps(self.step) * (1 - 1 / gain))


def low_median(values: Ranks) -> float:
    """Return the lower median: of two ranks, the faster one."""
    return float(np.sort(values)[(len(values) - 1) // 2])
