"""Scores as sums: every sample counts once, with any distribution over batches and ranks."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """Sums over samples. Counts are integers, so they are exact in any order."""

    loss_sum: float = 0.0
    correct1: int = 0
    correct5: int = 0
    samples: int = 0

    def __add__(self, other: "Score") -> "Score":
        return Score(
            loss_sum=self.loss_sum + other.loss_sum,
            correct1=self.correct1 + other.correct1,
            correct5=self.correct5 + other.correct5,
            samples=self.samples + other.samples,
        )

    @property
    def loss(self) -> float:
        """Mean loss per sample."""
        return self.loss_sum / self.samples if self.samples else 0.0

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
