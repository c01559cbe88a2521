"""Types of settings, and how each is read from a flag, a variable or a TOML file."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from cyclopts import Parameter, Token

PATTERN = re.compile(r"(\d+)\s*(epochs?|steps?|)")


@dataclass(frozen=True, slots=True)
class Interval:
    """A whole number of epochs or steps, written "2", "2 epochs" or "500 steps"."""

    number: int
    unit: Literal["epoch", "step"] = "epoch"

    @classmethod
    def parse(cls, text: str) -> "Interval":
        """Parse text such as "2 epochs"; ValueError if it is neither epochs nor steps."""
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


def _names(_type: Any, tokens: Sequence[Token]) -> tuple[str, ...]:
    """Read a list given as "a,b", as repeated flags, or as a TOML array; "none" is the empty list."""
    names = [name.strip() for token in tokens for name in token.value.split(",")]
    return tuple(name for name in names if name not in {"", "none"})


def _numbers(_type: Any, tokens: Sequence[Token]) -> tuple[int, ...]:
    return tuple(int(name) for name in _names(_type, tokens))


def _whole(_type: Any, tokens: Sequence[Token]) -> int:
    """Read a whole number; 1.5 is refused rather than rounded."""
    return int(tokens[0].value.replace("_", ""))


def _parts(_type: Any, tokens: Sequence[Token]) -> int | str:
    return "auto" if tokens[0].value == "auto" else _whole(_type, tokens)


def _interval(_type: Any, tokens: Sequence[Token]) -> Interval:
    return Interval.parse(tokens[0].value)


def _listed(values: Sequence[Any]) -> str:
    return ",".join(map(str, values)) or "none"


OptimizerName = Literal["sgd", "adam", "adamw"] | str
ScheduleName = Literal["constant", "milestones", "step", "cosine", "one-cycle"] | str
"""One of ours, or the user's own as my.py:name."""
SampleOrder = Literal["auto", "argsort", "feistel"]
"""How samples are shuffled: an argsort of hashes, or a keyed permutation; auto decides by the number of samples."""
Whole = Annotated[int, Parameter(converter=_whole)]
MaybeWhole = Annotated[int | None, Parameter(converter=_whole)]
Parts = Annotated[int | Literal["auto"], Parameter(converter=_parts, n_tokens=1, accepts_keys=False)]
Names = Annotated[tuple[str, ...], Parameter(converter=_names, n_tokens=1, negative="", show_default=_listed)]
Numbers = Annotated[tuple[int, ...], Parameter(converter=_numbers, n_tokens=1, negative="", show_default=_listed)]
Every = Annotated[Interval, Parameter(converter=_interval, n_tokens=1, accepts_keys=False)]
