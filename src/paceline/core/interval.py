"""How often something happens: every few epochs, or every few steps."""

import re
from dataclasses import dataclass
from typing import Literal

PATTERN = re.compile(r"(\d+)\s*(epochs?|steps?|)")


@dataclass(frozen=True, slots=True)
class Interval:
    """A whole number of epochs or steps, written "2", "2 epochs" or "500 steps"."""

    number: int
    unit: Literal["epoch", "step"] = "epoch"

    @classmethod
    def parse(cls, text: str) -> "Interval":
        """Read what the user wrote; ValueError if it is neither epochs nor steps."""
        match = PATTERN.fullmatch(text.strip())
        if match is None or int(match[1]) < 1:
            raise ValueError(text)
        return cls(int(match[1]), "step" if match[2].startswith("step") else "epoch")

    def __str__(self) -> str:
        return f"{self.number} {self.unit}" + "s" * (self.number != 1)

    def due(self, *, step: int, steps_per_epoch: int) -> bool:
        """Tell whether it is time after `step` steps."""
        period = self.number if self.unit == "step" else self.number * steps_per_epoch
        return step % period == 0
