"""Scores as text: how a score is called and formatted wherever people read it."""

from collections.abc import Mapping
from typing import Any

from paceline.core.units import percent, value_text

LABELS = {"top1": "acc", "top5": "top-5"}
"""Short names of scores on the terminal."""
TAGS = {"top1": "acc1", "top5": "acc5"}
"""Names of scores in TensorBoard and W&B."""
TITLES = {"top1": "accuracy", "top5": "top-5 accuracy"}
"""Names of scores in sentences and headings."""
FRACTIONS = frozenset({"top1", "top5", "accuracy", "mIoU", "f1"})
"""Scores between 0 and 1, shown as a percentage."""
FACTS = frozenset({"samples", "split_samples", "epoch", "step"})
"""Numbers beside the scores of an evaluation that are not scores."""


def score_value(name: str, value: float) -> str:
    """Return a score as text."""
    if name in FRACTIONS:
        return percent(value)
    return f"{value:.4f}" if name == "loss" and abs(value) < 1e4 else f"{value:.4g}"


def spread_text(name: str, mean: float, deviation: float) -> str:
    """Return the mean and the standard deviation of a result such as "test acc": "97.51% ± 0.30%"."""
    if value_text(name, mean).endswith("%"):
        return f"{percent(mean)} ± {percent(deviation)}"
    return f"{mean:.4g} ± {deviation:.2g}"


def score_text(scores: Mapping[str, float], *, most: int | None = None) -> str:
    """Return scores as one line, only the first `most` of them if given."""
    names = list(scores)[:most]
    return "  ".join(f"{LABELS.get(name, name)} {score_value(name, scores[name])}" for name in names)


def main_score(scores: Mapping[str, Any]) -> str:
    """Return the name of the score that stands for an evaluation: the one after the loss, else the loss."""
    others = [name for name in scores if name != "loss" and name not in FACTS]
    return "top1" if "top1" in scores else others[0] if others else "loss"
