"""Did-you-mean: the one place that finds the nearest known name."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name closest to `name`, before others one that it begins; None when nothing is close."""
    folded = {candidate.casefold(): candidate for candidate in known}
    matches = get_close_matches(name.casefold(), folded, n=5, cutoff=0.5)
    longer = [match for match in matches if match.startswith(name.casefold())]
    return folded[(longer or matches)[0]] if matches else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return a hint: the nearest name first, then all there are."""
    known = sorted(known)
    listed = "known: " + ", ".join(known)
    close = nearest(name, known)
    return listed if close is None else f"did you mean {close}? ({listed})"
