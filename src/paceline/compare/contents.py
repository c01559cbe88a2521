"""Compares two files section by section, and explains known patterns of differences."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline.compare.tensors import Comparison, Status, compare_tensors, compare_values
from paceline.core.units import plural

WEIGHTS, BUFFERS = "weights", "buffers"
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")

Entries = Mapping[str, Any]
"""Tensors (Stored) and plain values by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Contents:
    """The sections of a file: weights, buffers, optimizer, progress and so on."""

    name: str
    """The path as typed by the user, with the kind of file."""
    parts: Mapping[str, Entries]
    notes: tuple[str, ...] = ()
    """Changes of names, such as removed prefixes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PartComparison:
    """One section of two files."""

    name: str
    entries: tuple[Comparison, ...]
    same_order: bool = True
    """Whether both files have the names that they share in the same order."""

    def having(self, *statuses: Status) -> list[Comparison]:
        """Return the entries that have one of these statuses."""
        return [entry for entry in self.entries if entry.status in statuses]

    @property
    def worst(self) -> Comparison | None:
        """The entry with the largest relative difference."""
        measured = [entry for entry in self.entries if entry.largest is not None]
        return max(measured, key=_relative, default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class ContentsComparison:
    """The comparison of two files."""

    parts: tuple[PartComparison, ...]
    missing: tuple[str, ...]
    """Sections that only one file has, in words."""
    tolerance: float | None

    @property
    def status(self) -> Status:
        """The verdict: equal (every bit), close, or different."""
        found = {entry.status for part in self.parts for entry in part.entries}
        if self.missing and any(part.name not in {WEIGHTS, BUFFERS} for part in self.parts):
            return Status.DIFFERS  # weight files need no optimizer state, two checkpoints do
        if found <= {Status.EQUAL}:
            return Status.EQUAL
        return Status.CLOSE if found <= {Status.EQUAL, Status.CLOSE} else Status.DIFFERS

    @property
    def worst_relative(self) -> float:
        """The largest difference relative to the largest value of its tensor."""
        found = [part.worst.largest.relative for part in self.parts if part.worst and part.worst.largest]
        return max(found, default=0.0)

    @property
    def agrees(self) -> bool:
        """Tell whether the files are equal: bit by bit, or within --tolerance."""
        return self.status is Status.EQUAL or (self.tolerance is not None and self.status is Status.CLOSE)

    @property
    def by_hash(self) -> bool:
        """Tell whether tensors were not read, since their hashes are equal."""
        return any(entry.by_hash for part in self.parts for entry in part.entries)

    def unequal(self) -> list[tuple[str, Comparison]]:
        """Return every unequal entry with the name of its section, the largest difference of a section first."""
        found = []
        for part in self.parts:
            entries = [entry for entry in part.entries if entry.status is not Status.EQUAL]
            found += [(part.name, entry) for entry in sorted(entries, key=_relative, reverse=True)]
        return found


def compare_contents(first: Contents, second: Contents, *, tolerance: float | None = None) -> ContentsComparison:
    """Compare every section that both files have; of two models weights and buffers, even if one has none of them."""
    names = dict.fromkeys([*first.parts, *second.parts])
    of_model = {WEIGHTS, BUFFERS} if _model_names(first) and _model_names(second) else set()
    shared = [name for name in names if name in of_model or (name in first.parts and name in second.parts)]
    missing = [f"{name} only in {'A' if name in first.parts else 'B'}" for name in names if name not in shared]
    return ContentsComparison(
        parts=tuple(
            _compare_part(name, first.parts.get(name, {}), second.parts.get(name, {}), tolerance) for name in shared
        ),
        missing=tuple(missing),
        tolerance=tolerance,
    )


def _compare_part(name: str, first: Entries, second: Entries, tolerance: float | None) -> PartComparison:
    orders = [[key for key in mine if key in other] for mine, other in ((first, second), (second, first))]
    entries = tuple(_entries(first, second, tolerance))
    return PartComparison(name=name, entries=entries, same_order=orders[0] == orders[1])


def fit_names(first: Contents, second: Contents) -> tuple[Contents, Contents]:
    """Remove a prefix common to all names of one file, as in "model.conv1.weight", if no name is shared otherwise."""
    if _model_names(first) & _model_names(second):
        return first, second
    for mine, other in ((first, second), (second, first)):
        prefix = next(iter(_model_names(mine)), "").partition(".")[0] + "."
        bare = {name.removeprefix(prefix) for name in _model_names(mine) if name.startswith(prefix)}
        if len(bare) == len(_model_names(mine)) and bare & _model_names(other):
            fitted = _without_prefix(mine, prefix)
            return (fitted, second) if mine is first else (first, fitted)
    return first, second


def split_model(state: Entries) -> dict[str, Entries]:
    """Split a model's state into weights and buffers, by name and type: a state dict does not distinguish them."""
    buffers = {name for name, value in state.items() if is_statistic(name) or not _trainable(value)}
    weights = {name: value for name, value in state.items() if name not in buffers}
    found = {WEIGHTS: weights, BUFFERS: {name: state[name] for name in state if name in buffers}}
    return {name: part for name, part in found.items() if part}


def is_statistic(name: str) -> bool:
    """Tell whether a tensor is a running statistic of batch norm, by its name."""
    return name.rpartition(".")[2] in STATISTICS


def explain_differences(comparison: ContentsComparison) -> list[str]:
    """Return explanations of known patterns of differences."""
    unequal = comparison.unequal()
    sentences = [f"Not compared: {', '.join(comparison.missing)}."] if comparison.missing else []
    stray = [entry for part, entry in unequal if part == BUFFERS and is_statistic(entry.name)]
    weights = next((part for part in comparison.parts if part.name == WEIGHTS), None)
    same_weights = weights is not None and not [e for e in weights.entries if e.status is not Status.EQUAL]
    if stray and same_weights and len(stray) == len([e for part, e in unequal if part in {WEIGHTS, BUFFERS}]):
        sentences.append(
            f"All weights are equal bit by bit; only {plural(len(stray), 'running statistic')} of batch norm "
            f"{'differs' if len(stray) == 1 else 'differ'}. "
            "This is typical of ranks without synchronised batch norm: gradients are averaged, so the weights stay "
            "equal, but each rank keeps the mean and variance of its own samples, and an evaluation depends on "
            "which rank's file is loaded. paceline train averages them before it evaluates or saves; "
            "--batch-norm sync computes them over the global batch."
        )
    reordered = [part.name for part in comparison.parts if not part.same_order]
    if reordered:
        sentences.append(f"The order of names differs in: {', '.join(reordered)}. Loading by name is not affected.")
    if any(sum(entry.num_nan) for _, entry in unequal):
        sentences.append("Some values are not numbers (NaN): one of the two has diverged or was damaged.")
    steps = next((entry.values for part, entry in unequal if part == "progress" and entry.name == "step"), None)
    if steps is not None:
        sentences.append(f"They are from different steps: A is after step {steps[0]}, B after step {steps[1]}.")
    return sentences


def _model_names(contents: Contents) -> set[str]:
    return {name for part in (WEIGHTS, BUFFERS) for name in contents.parts.get(part, {})}


def _without_prefix(contents: Contents, prefix: str) -> Contents:
    parts = {
        part: {name.removeprefix(prefix) if part in {WEIGHTS, BUFFERS} else name: value for name, value in held.items()}
        for part, held in contents.parts.items()
    }
    note = f"removed the prefix {prefix} of every name, so that the names match"
    return Contents(name=contents.name, parts=parts, notes=(*contents.notes, note))


def _entries(first: Entries, second: Entries, tolerance: float | None) -> Iterable[Comparison]:
    for name in dict.fromkeys([*first, *second]):
        if name not in second:
            yield _alone(name, first[name], Status.ONLY_FIRST)
        elif name not in first:
            yield _alone(name, second[name], Status.ONLY_SECOND)
        elif _is_tensor(first[name]) and _is_tensor(second[name]):
            yield compare_tensors(name, first[name], second[name], tolerance=tolerance)
        else:
            yield compare_values(name, first[name], second[name], tolerance=tolerance)


def _alone(name: str, value: Any, status: Status) -> Comparison:
    here = 0 if status is Status.ONLY_FIRST else 1
    if not _is_tensor(value):
        return Comparison(name=name, status=status, values=_pair(value, here))
    return Comparison(name=name, status=status, shapes=_pair(value.shape, here), dtypes=_pair(value.dtype, here))


def _pair(value: Any, here: int) -> Any:
    return (value, None) if here == 0 else (None, value)


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "blocks")


def _trainable(value: Any) -> bool:
    return _is_tensor(value) and value.dtype.startswith(("float", "bfloat", "complex"))


def _relative(entry: Comparison) -> float:
    return -1.0 if entry.largest is None else entry.largest.relative
