"""Progress: the only mutable state of a run besides the job."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from paceline.core.metrics import Scores, Sums


@dataclass(kw_only=True, slots=True)
class Progress:
    """Progress of a run. Saved with every checkpoint; independent of the world size."""

    step: int = 0
    """Steps done since the start of the run."""
    epoch_score: Sums = dataclasses.field(default_factory=Sums)
    """Training metrics of the current epoch so far."""
    interval_score: Sums = dataclasses.field(default_factory=Sums)
    """Training metrics since the last step record."""
    best: Scores | None = None
    best_step: int = 0
    num_stale: int = 0
    """Evaluations since the best one."""
    stopped_early: bool = False

    def judge(self, valid: Scores, name: str = "loss", better: Literal["higher", "lower"] = "lower") -> bool:
        """Take an evaluation into account and tell whether it is the best so far, by the score of this name.

        Ties are decided by the lower loss. A score that is nan never replaces another. An earlier best over another
        number of samples, from before a change of the run's length, is not compared.
        """
        sign = 1 if better == "higher" else -1

        def rank(scores: Scores) -> tuple[float, float]:
            value = sign * scores.by_name.get(name, math.nan)
            return (-math.inf if math.isnan(value) else value), -scores.by_name.get("loss", 0.0)

        is_comparable = self.best is not None and self.best.samples == valid.samples
        is_best = self.best is None or not is_comparable or rank(valid) > rank(self.best)
        if is_best:
            self.best, self.best_step, self.num_stale = valid, self.step, 0
        else:
            self.num_stale += 1
        return is_best

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for a checkpoint."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Progress":
        """Return the progress from the values of `as_dict`."""
        kinds = {"epoch_score": Sums, "interval_score": Sums, "best": Scores}
        restored: dict[str, Any] = {
            key: kinds[key].from_dict(value) if isinstance(value, dict) else value for key, value in values.items()
        }
        return cls(**restored)
