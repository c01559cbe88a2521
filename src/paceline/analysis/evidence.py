"""What an explanation works with: a run in numbers, and a cause that was found."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from paceline.analysis.phases import Ranks, TimeSplit
from paceline.analysis.remedies import Remedy
from paceline.core.config import Config
from paceline.records.profile import Profile

Cause = Literal[
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
"""Part of the time from which a cause is named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A cause, the part of the time that it costs, what is seen of it, and what to try."""

    cause: Cause
    share: float
    sentence: str
    remedies: tuple[Remedy, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """A run as its explanation needs it."""

    split: TimeSplit
    config: Config
    profile: Profile | None

    @property
    def seconds(self) -> float:
        """Seconds of the run after start-up."""
        whole = self.split.whole
        return float((whole.seconds - whole.phases["start"]).mean())

    @property
    def step(self) -> float:
        """Seconds of a step."""
        return float(self.split.steady.step.mean())

    def share_of_steps(self, seconds_per_step: float) -> float:
        """Return the part of the run that so much of every step is."""
        return seconds_per_step * self.split.whole.steps / self.seconds

    def gain(self, share: float) -> float:
        """Return how many times as fast the run is without a part of its time."""
        return 1 / (1 - min(share, 0.99))

    def gain_of_steps(self, gain: float) -> float:
        """Return how many times as fast the run is with steps that are so many times as fast."""
        return self.gain(self.share_of_steps(self.step) * (1 - 1 / gain))


def low_median(values: Ranks) -> float:
    """Return the median, and the smaller one of two in the middle: one slow rank of two is not usual."""
    return float(np.sort(values)[(len(values) - 1) // 2])
