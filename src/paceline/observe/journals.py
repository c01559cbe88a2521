"""Reading the journals of a command's processes: which of them were ranks, which workers, which only started others."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

Line = dict[str, Any]


@dataclass(frozen=True)
class ProcessJournal:
    """The lines of one process."""

    lines: list[Line]

    @cached_property
    def by_kind(self) -> dict[str, list[Line]]:
        """The lines of each kind, in order."""
        found: dict[str, list[Line]] = {}
        for line in self.lines:
            found.setdefault(line["kind"], []).append(line)
        return found

    def of(self, kind: str) -> list[Line]:
        """Return the lines of a kind."""
        return self.by_kind.get(kind, [])

    def first(self, kind: str) -> Line:
        """Return the first line of a kind, an empty one if there is none."""
        return next(iter(self.of(kind)), {})

    @property
    def process(self) -> Line:
        """Facts about the process."""
        return self.first("process")

    @property
    def rank(self) -> int | None:
        """Its rank: of its process group, or as its launcher says; a process that does not train has none."""
        joined = self.first("rank")
        if joined:
            return joined["rank"]
        return self.process.get("rank_given", 0) if self.of("trains") or self.of("step") else None


@dataclass(frozen=True)
class CommandJournals:
    """The journals of all processes of a command."""

    ranks: dict[int, ProcessJournal]
    """By rank; the newest process where a rank was restarted."""
    others: list[ProcessJournal]


def read_journals(folder: Path) -> CommandJournals:
    """Read all journals; a line that was cut off by a kill is left out."""
    journals = [ProcessJournal(list(_lines(path))) for path in sorted(folder.glob("*.jsonl"))]
    journals.sort(
        key=lambda journal: (bool(journal.of("trains") or journal.of("step")), journal.process.get("born", 0.0))
    )
    ranks = {journal.rank: journal for journal in journals if journal.rank is not None}
    kept = {id(journal) for journal in ranks.values()}
    return CommandJournals(
        ranks={rank: ranks[rank] for rank in sorted(ranks)},
        others=[journal for journal in journals if id(journal) not in kept],
    )


def _lines(path: Path) -> Iterator[Line]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            try:
                yield json.loads(text)
            except ValueError:
                continue
