"""Records thinned while they are read: evenly spaced ones of each kind, in memory that does not grow with the run."""

from collections import defaultdict
from typing import Any

MOST_RECORDS = 4000
"""Of a kind; a curve is never drawn with more points than the screen has pixels."""


class ThinnedRecords:
    """Keeps every k-th record of a kind and the last one, where k doubles whenever there are too many."""

    def __init__(self, most: int = MOST_RECORDS) -> None:
        self._most = most
        self._kinds: dict[tuple[str, Any], _Kind] = defaultdict(_Kind)
        self._number = 0

    def add(self, record: dict[str, Any]) -> None:
        """Take the next record of a run."""
        self._kinds[record["kind"], record.get("split")].add(self._number, record, self._most)
        self._number += 1

    def kept(self) -> list[dict[str, Any]]:
        """Return the records that were kept, in the order in which they were written."""
        numbered = [pair for kind in self._kinds.values() for pair in kind.with_last()]
        return [record for _, record in sorted(numbered, key=lambda pair: pair[0])]


class _Kind:
    """The records of one kind, each with its position among all records."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, dict[str, Any]]] = []
        self.last: tuple[int, dict[str, Any]] | None = None
        self.every = 1
        self.seen = 0

    def add(self, number: int, record: dict[str, Any], most: int) -> None:
        self.last = number, record
        if self.seen % self.every == 0:
            self.kept.append(self.last)
            if len(self.kept) >= most:
                self.kept, self.every = self.kept[::2], 2 * self.every
        self.seen += 1

    def with_last(self) -> list[tuple[int, dict[str, Any]]]:
        is_kept = self.last is None or (self.kept and self.kept[-1][0] == self.last[0])
        return self.kept if is_kept or self.last is None else [*self.kept, self.last]
