"""Did-you-mean: the one place that finds the nearest known name."""

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches
from itertools import takewhile


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name closest to `name`, the one that begins like it among equals; None when nothing is close."""
    folded = {candidate.casefold(): candidate for candidate in known}
    matches = get_close_matches(name.casefold(), folded, n=5, cutoff=0.5)

    def closeness(match: str) -> tuple[float, int]:
        ratio = SequenceMatcher(None, match, name.casefold()).ratio()
        shared = takewhile(lambda pair: pair[0] == pair[1], zip(match, name.casefold(), strict=False))
        return round(ratio, 1), len(list(shared))

    return folded[max(matches, key=closeness)] if matches else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return a hint: the nearest name first, then all there are."""
    known = sorted(known)
    listed = "known: " + ", ".join(known)
    close = nearest(name, known)
    return listed if close is None else f"did you mean {close}? ({listed})"
