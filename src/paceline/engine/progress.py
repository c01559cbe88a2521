"""Progress: the only mutable state of a run besides the job."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from paceline.core.metrics import Score


@dataclass(kw_only=True, slots=True)
class Progress:
    """Progress of a run. Saved with every checkpoint; independent of the world size."""

    step: int = 0
    """Steps done since the start of the run."""
    epoch_score: Score = dataclasses.field(default_factory=Score)
    """Training metrics of the current epoch so far."""
    interval_score: Score = dataclasses.field(default_factory=Score)
    """Training metrics since the last step record."""
    best: Score | None = None
    best_step: int = 0
    num_stale: int = 0
    """Evaluations since the best one."""
    stopped_early: bool = False

    def judge(self, valid: Score) -> bool:
        """Take an evaluation into account and tell whether it is the best so far.

        An earlier best over another number of samples, from before a change of the run's length, is not compared.
        """
        if self.best is None or self.best.samples != valid.samples:
            is_best = True
        else:
            is_best = (valid.top1, -valid.loss) > (self.best.top1, -self.best.loss)
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
        restored: dict[str, Any] = {
            key: Score.from_dict(value) if isinstance(value, dict) else value for key, value in values.items()
        }
        return cls(**restored)
