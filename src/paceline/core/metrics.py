"""Scores as sums: every image counts once, however the images were spread over batches and ranks."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """Sums over images. Counts are integers, so they are exact in any order."""

    loss_sum: float = 0.0
    correct1: int = 0
    correct5: int = 0
    images: int = 0

    def __add__(self, other: "Score") -> "Score":
        return Score(
            loss_sum=self.loss_sum + other.loss_sum,
            correct1=self.correct1 + other.correct1,
            correct5=self.correct5 + other.correct5,
            images=self.images + other.images,
        )

    @property
    def loss(self) -> float:
        """Mean loss per image."""
        return self.loss_sum / self.images if self.images else 0.0

    @property
    def top1(self) -> float:
        """Share of images whose likeliest class is right."""
        return self.correct1 / self.images if self.images else 0.0

    @property
    def top5(self) -> float:
        """Share of images whose class is among the five likeliest."""
        return self.correct5 / self.images if self.images else 0.0

    def as_dict(self) -> dict[str, float | int]:
        """Return the means and the number of images, as shown to users and written to files."""
        return {"loss": self.loss, "top1": self.top1, "top5": self.top5, "images": self.images}
