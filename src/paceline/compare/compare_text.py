"""The comparison of two files, as text and as plain values."""

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from paceline.compare.contents import Contents, ContentsComparison, PartComparison, explain_differences
from paceline.compare.tensors import ROUNDING, Comparison, Status
from paceline.core.units import count, number, table

NUM_SHOWN = 12
BITS = {"sign": "signs of zeros", "NaN": "bits of NaN"}
WIDTH = 100


def comparison_text(
    first: Contents, second: Contents, comparison: ContentsComparison, *, show_all: bool = False
) -> str:
    """Return the names, a line per section, the tensors that differ, and the verdict."""
    lines = []
    for label, contents in (("A", first), ("B", second)):
        lines.append(f"{label}  {contents.name}")
        lines += [f"   {note}" for note in contents.notes]
    head = ["part", "entries", "equal", "close", "differ", "only in one", "largest difference"]
    lines += ["", table(head, [_part_row(part) for part in comparison.parts])]
    unequal = comparison.unequal()
    if unequal:
        shown = unequal if show_all else unequal[:NUM_SHOWN]
        head = ["not equal", "is", "in", "A → B", "relative", "ulps", "elements"]
        lines += ["", table(head, [_row(*e) for e in shown])]
        if len(shown) < len(unequal):
            lines.append(
                f"and {count(len(unequal) - len(shown))} more; to list them: --all, or --json with every number"
            )
    for sentence in explain_differences(comparison):
        lines += ["", textwrap.fill(sentence, WIDTH)]
    return "\n".join([*lines, "", comparison_verdict(comparison)])


def comparison_verdict(comparison: ContentsComparison) -> str:
    """Return the verdict in a sentence."""
    num, num_unequal = sum(len(part.entries) for part in comparison.parts), len(comparison.unequal())
    worst = comparison.worst_relative
    match comparison.status, comparison.tolerance:
        case Status.EQUAL, _:
            by_hash = "; by the hashes in their manifests: the files were not read, paceline check reads them"
            return f"equal: all {count(num)} entries, bit by bit{by_hash if comparison.by_hash else ''}"
        case Status.CLOSE, None if all(entry.what in {"sign", "NaN"} for _, entry in comparison.unequal()):
            what = " and ".join(sorted({BITS[entry.what] for _, entry in comparison.unequal()}))
            return f"not equal: all values are equal, but {what} differ; --tolerance 0 accepts that"
        case Status.CLOSE, None:
            return (
                f"not equal, but close: the largest relative difference is {worst:.2g}, typical of rounding; "
                f"--tolerance {ROUNDING:g} accepts that"
            )
        case Status.CLOSE, tolerance:
            return f"close: every difference is within --tolerance {tolerance:g} (largest: {worst:.2g})"
        case _:
            return f"different: {count(num_unequal)} of {count(num)} entries are not equal"


def comparison_values(first: Contents, second: Contents, comparison: ContentsComparison) -> dict[str, Any]:
    """Return the comparison as plain values for JSON."""
    return {
        "first": {"name": first.name, "notes": list(first.notes)},
        "second": {"name": second.name, "notes": list(second.notes)},
        "status": str(comparison.status),
        "agrees": comparison.agrees,
        "by_hash": comparison.by_hash,
        "tolerance": comparison.tolerance,
        "missing": list(comparison.missing),
        "reordered": [part.name for part in comparison.parts if not part.same_order],
        "explanation": explain_differences(comparison),
        "parts": {part.name: _counts(part) for part in comparison.parts},
        "entries": [entry_values(part.name, entry) for part in comparison.parts for entry in part.entries],
    }


def _part_row(part: PartComparison) -> list[str]:
    counts = _counts(part)
    cells = [count(counts[key]) if counts[key] else "–" for key in ("equal", "close", "differs", "only in one")]
    worst = part.worst
    largest = "" if worst is None or worst.largest is None else f"{worst.largest.absolute:.3g} in {worst.name}"
    return [part.name, count(len(part.entries)), *cells, largest]


def _counts(part: PartComparison) -> dict[str, int]:
    return {
        "equal": len(part.having(Status.EQUAL)),
        "close": len(part.having(Status.CLOSE)),
        "differs": len(part.having(Status.DIFFERS)),
        "only in one": len(part.having(Status.ONLY_FIRST, Status.ONLY_SECOND)),
    }


def _row(part: str, entry: Comparison) -> list[str]:
    name, what = f"{part}: {entry.name}", entry.what
    if entry.status in {Status.ONLY_FIRST, Status.ONLY_SECOND}:
        here = 0 if entry.status is Status.ONLY_FIRST else 1
        return [name, str(entry.status), what, _kind(entry, here), "", "", ""]
    if not entry.same_kind:
        largest = "" if entry.largest is None else f"{entry.largest.relative:.2g}"
        return [name, str(entry.status), what, f"{_kind(entry, 0)} → {_kind(entry, 1)}", largest, "", ""]
    largest = entry.largest
    if largest is None:
        return [name, str(entry.status), what, f"{_short(entry.values[0])} → {_short(entry.values[1])}", "", "", ""]
    place = f"[{','.join(map(str, largest.index))}] " if largest.index else ""
    ulps = "" if largest.ulps is None else count(largest.ulps)
    elements = f"{count(entry.num_different)} of {count(entry.num_elements)}" + _nan_text(entry.num_nan)
    change = f"{place}{largest.first:.9g} → {largest.second:.9g}"
    return [name, str(entry.status), what, change, f"{largest.relative:.2g}", ulps, elements]


def _kind(entry: Comparison, here: int) -> str:
    shape, dtype = entry.shapes[here], entry.dtypes[here]
    if dtype is None:
        return _short(entry.values[here])
    return f"{dtype} {'×'.join(map(str, shape or ())) or 'number'}"


def _short(value: Any) -> str:
    return textwrap.shorten(number(value) if isinstance(value, float) else str(value), 40)


def _nan_text(num_nan: Sequence[int]) -> str:
    return f", NaN: {num_nan[0]} in A, {num_nan[1]} in B" if any(num_nan) else ""


def entry_values(part: str, entry: Comparison) -> dict[str, Any]:
    """Return one entry as plain values for JSON."""
    found: dict[str, Any] = {"part": part, "name": entry.name, "status": str(entry.status), "what": entry.what}
    if any(entry.dtypes):
        found |= {"shapes": list(entry.shapes), "dtypes": list(entry.dtypes), "num_elements": entry.num_elements}
        found |= {"num_different": entry.num_different, "num_nan": list(entry.num_nan)}
    else:
        found["values"] = [_json_number(value) for value in entry.values]
    if entry.largest is not None:
        largest = entry.largest
        found |= {"index": list(largest.index), "ulps": largest.ulps}
        for name in ("first", "second", "absolute", "relative"):
            found[name] = _json_number(getattr(largest, name))
    return found


def _json_number(value: Any) -> Any:
    """Return a value that JSON supports: a non-finite number becomes text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
