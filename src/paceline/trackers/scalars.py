"""Records as named numbers, the same names for every tracker that draws curves."""

from paceline.core.metrics import Score
from paceline.records.entries import EpochRecord, EvalRecord, StepRecord


def scalars(entry: StepRecord | EpochRecord | EvalRecord) -> dict[str, float]:
    """Return the numbers of a record under the names users know from TensorBoard."""
    match entry:
        case StepRecord():
            utilisation = {f"utilisation/{name}": value for name, value in entry.utilisation.items()}
            return _named(entry.score, "train") | {"lr": entry.lr, "images_per_s": entry.images_per_s} | utilisation
        case EpochRecord():
            return _epoch(entry)
        case EvalRecord():
            return _named(entry.score, "val" if entry.split == "valid" else entry.split)


def _epoch(entry: EpochRecord) -> dict[str, float]:
    """The means over the whole epoch go under names of their own: loss/train has its last interval already."""
    valid = {} if entry.valid is None else _named(entry.valid, "val")
    return {f"epoch/{name}": value for name, value in _named(entry.train, "train").items()} | valid


def _named(score: Score, split: str) -> dict[str, float]:
    return {f"loss/{split}": score.loss, f"acc1/{split}": score.top1, f"acc5/{split}": score.top5}
