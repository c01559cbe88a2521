"""Scores as sums: every sample counts once, with any distribution over batches and ranks."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

UNIT_BITS = 40
"""A sum of floats is kept in units of 2^-40."""
MEAN_LOSS_BITS = 24
"""The sum of a loss that comes as a mean is kept in units of 2^-24."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExactSum:
    """A sum of numbers, or of matrices element by element. It holds integers of any size: exact in any order."""

    units: tuple[int, ...]
    """The sums of the finite elements, in units of 2^-bits, row by row."""
    shape: tuple[int, ...] = ()
    bits: int = 0
    nonfinite: float = 0.0
    """Sum of the elements that are inf or nan; 0 if all are finite."""

    def __add__(self, other: "ExactSum") -> "ExactSum":
        assert (self.shape, self.bits) == (other.shape, other.bits), "sums of one name have one kind"
        units = tuple(one + two for one, two in zip(self.units, other.units, strict=True))
        return ExactSum(units=units, shape=self.shape, bits=self.bits, nonfinite=self.nonfinite + other.nonfinite)

    @classmethod
    def of(cls, value: float, *, bits: int = 0) -> "ExactSum":
        """Return the sum of one number, rounded to units of 2^-bits."""
        if not math.isfinite(value):
            return cls(units=(0,), bits=bits, nonfinite=value)
        return cls(units=(round(value * (1 << bits)),), bits=bits)

    @property
    def number(self) -> float | int:
        """The sum of numbers: an integer if it is one by nature, else the nearest float."""
        return self.units[0] if not self.bits else self.units[0] / (1 << self.bits) + self.nonfinite

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ExactSum":
        """Return the sum from its fields."""
        return cls(**{**values, "units": tuple(values["units"]), "shape": tuple(values["shape"])})


@dataclass(frozen=True, kw_only=True, slots=True)
class Sums:
    """Sums over samples by the name of a loss or metric, each with one part or more."""

    parts: Mapping[str, tuple[ExactSum, ...]] = field(default_factory=dict)
    samples: int = 0

    def __add__(self, other: "Sums") -> "Sums":
        if not self.samples or not other.samples:
            return other if other.samples else self
        names = dict.fromkeys([*self.parts, *other.parts])
        return Sums(parts={name: self._joined(other, name) for name in names}, samples=self.samples + other.samples)

    def _joined(self, other: "Sums", name: str) -> tuple[ExactSum, ...]:
        if name not in self.parts or name not in other.parts:
            return self.parts.get(name) or other.parts[name]
        return tuple(one + two for one, two in zip(self.parts[name], other.parts[name], strict=True))

    def nonfinite(self, name: str) -> float:
        """Return the inf or nan that a sum contains; 0 if it is finite."""
        return sum(part.nonfinite for part in self.parts.get(name, ()))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Sums":
        """Return the sums from their fields; earlier versions had those of image classification only."""
        if "parts" not in values:
            return _sums_of_classification(values)
        parts = {name: tuple(map(ExactSum.from_dict, own)) for name, own in values["parts"].items()}
        return cls(parts=parts, samples=values["samples"])


def _sums_of_classification(values: Mapping[str, Any]) -> Sums:
    """Return the sums that earlier versions stored: a loss as a float or in units, and correct predictions."""
    samples = values["samples"]
    if not samples:
        return Sums()
    loss = ExactSum.of(values["loss_sum"], bits=MEAN_LOSS_BITS) if "loss_sum" in values else ExactSum(
        units=(values["loss_units"],), bits=MEAN_LOSS_BITS, nonfinite=values["nonfinite"]
    )  # fmt: skip
    counts = [ExactSum.of(values["correct1"]), ExactSum.of(values["correct5"]), ExactSum.of(samples)]
    return Sums(parts={"loss": (loss, ExactSum.of(samples)), "accuracy": tuple(counts)}, samples=samples)


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Scores:
    """The values of an evaluation by name: the loss first, then the metrics of the task.

    A score is also an attribute: `scores.top1` is `scores["top1"]`.
    """

    by_name: Mapping[str, float] = field(default_factory=dict)
    samples: int = 0

    def __repr__(self) -> str:
        values = [f"{name}={value:.4g}" for name, value in self.by_name.items()]
        return f"Scores({', '.join([*values, f'samples={self.samples}'])})"

    def __hash__(self) -> int:
        return hash((tuple(self.by_name.items()), self.samples))

    def __getitem__(self, name: str) -> float:
        return self.by_name[name]

    def __getattr__(self, name: str) -> float:
        if name.startswith("_") or name == "by_name" or name not in self.by_name:
            raise AttributeError(f"there is no score {name}")
        return self.by_name[name]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Scores":
        """Return the scores from their fields; earlier versions stored sums of image classification."""
        if "by_name" in values:
            return cls(by_name=dict(values["by_name"]), samples=values["samples"])
        parts, samples = _sums_of_classification(values).parts, max(1, values["samples"])
        loss = parts["loss"][0].number / samples if parts else 0.0
        top = {f"top{k}": values[f"correct{k}"] / samples for k in (1, 5)}
        return cls(by_name={"loss": loss} | top, samples=values["samples"])

    def as_dict(self) -> dict[str, float | int]:
        """Return the scores and the number of samples, as shown to users and written to files."""
        return {**self.by_name, "samples": self.samples}
