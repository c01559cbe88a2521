"""Scores as sums: every sample counts once, with any distribution over batches and ranks."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

UNITS_PER_LOSS = 1 << 24


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """Sums over samples. All are integers of any size, so they are exact in any order."""

    loss_units: int = 0
    """Sum of the finite losses, in units of 2^-24."""
    nonfinite: float = 0.0
    """Sum of the other losses: inf or nan; 0 if all losses are finite."""
    correct1: int = 0
    correct5: int = 0
    samples: int = 0

    def __add__(self, other: "Score") -> "Score":
        return Score(
            loss_units=self.loss_units + other.loss_units,
            nonfinite=self.nonfinite + other.nonfinite,
            correct1=self.correct1 + other.correct1,
            correct5=self.correct5 + other.correct5,
            samples=self.samples + other.samples,
        )

    @classmethod
    def of(cls, loss_sum: float, **counts: int) -> "Score":
        """Return the score of some samples from the sum of their losses, rounded to units of 2^-24."""
        if not math.isfinite(loss_sum):
            return cls(nonfinite=loss_sum, **counts)
        return cls(loss_units=round(loss_sum * UNITS_PER_LOSS), **counts)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Score":
        """Return the score from its fields; earlier versions stored the sum of the losses as a float."""
        return cls.of(**values) if "loss_sum" in values else cls(**values)

    @property
    def loss_sum(self) -> float:
        """Sum of all losses, as the nearest float."""
        return self.loss_units / UNITS_PER_LOSS + self.nonfinite

    @property
    def loss(self) -> float:
        """Mean loss per sample."""
        return self.loss_units / (UNITS_PER_LOSS * self.samples) + self.nonfinite if self.samples else 0.0

    @property
    def top1(self) -> float:
        """Top-1 accuracy: fraction of samples whose likeliest class is correct."""
        return self.correct1 / self.samples if self.samples else 0.0

    @property
    def top5(self) -> float:
        """Top-5 accuracy: fraction of samples whose class is among the five likeliest."""
        return self.correct5 / self.samples if self.samples else 0.0

    def as_dict(self) -> dict[str, float | int]:
        """Return the means and the number of samples, as shown to users and written to files."""
        return {"loss": self.loss, "top1": self.top1, "top5": self.top5, "samples": self.samples}
