"""The evidence of an audited command: the journals of its ranks, and who loaded which samples."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paceline.observe.journals import CommandJournals, Line, ProcessJournal

PassKey = tuple[int, int]
"""A loader and its n-th pass."""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the processes of a command did, and how it ended."""

    journals: CommandJournals
    code: int
    folder: str
    """The working directory of the command."""

    @property
    def ranks(self) -> dict[int, ProcessJournal]:
        """The journals by rank."""
        return self.journals.ranks

    @property
    def world_size(self) -> int:
        """Number of ranks that were seen."""
        return len(self.ranks)

    @property
    def lead(self) -> ProcessJournal:
        """The lowest rank."""
        return self.ranks[min(self.ranks)]

    def of(self, kind: str) -> list[list[Line]]:
        """Return the lines of a kind, by rank."""
        return [rank.of(kind) for rank in self.ranks.values()]

    def side_by_side(self, kind: str, key: str) -> Iterator[tuple[Any, list[Line]]]:
        """Yield the lines of a kind that all ranks have under the same value of a key."""
        by_rank = [{line[key]: line for line in lines} for lines in self.of(kind)]
        if not by_rank:
            return
        for value in by_rank[0]:
            if all(value in lines for lines in by_rank):
                yield value, [lines[value] for lines in by_rank]

    @property
    def joins(self) -> bool:
        """Whether the script uses `Join`, with which ranks may have different numbers of steps."""
        return any(self.of("join"))

    @cached_property
    def has_equal_weights(self) -> bool:
        """Tell whether all ranks hold the same weights after each step."""
        return all(len({line["weights"] for line in lines}) == 1 for _, lines in self.side_by_side("step", "step"))

    @property
    def is_sharded(self) -> bool:
        """Tell whether ranks hold shards of the weights, or average gradients in groups of ranks only."""
        steps = [line for lines in self.of("step") for line in lines[:1]]
        models = [line for lines in self.of("model") for line in lines]
        has_groups = any(not line.get("is_world", True) for line in models)
        return (
            has_groups or any(line.get("sharded") for line in steps) or len({line.get("shapes") for line in steps}) > 1
        )

    @property
    def is_data_parallel(self) -> bool:
        """Tell whether the ranks train one model together: by DistributedDataParallel, or with equal weights."""
        return not self.is_sharded and (bool(self.lead.of("model")) or self.has_equal_weights)

    @cached_property
    def training_line(self) -> str:
        """The line of the backward pass."""
        return next(iter(self.lead.first("training_lines").get("stack", [])), "")

    @cached_property
    def loaders(self) -> "Loaders":
        """The loaders of the ranks."""
        return Loaders(self)

    @property
    def steps(self) -> list[int]:
        """Training steps, by rank."""
        return [len(rank.of("step")) for rank in self.ranks.values()]


class Loaders:
    """Who got which samples: by loader, pass and rank."""

    def __init__(self, evidence: Evidence) -> None:
        ranks = list(evidence.ranks.values())
        self._made = [{line["loader"]: line for line in rank.of("loader")} for rank in ranks]
        self._passes = [{(line["loader"], line["nth"]): line for line in rank.of("pass")} for rank in ranks]
        self._orders = [{(line["loader"], line["nth"]): line for line in rank.of("order")} for rank in ranks]
        self.trained_on = {line["loader"] for rank in ranks for line in rank.of("trains_on")}
        shared = set(self._made[0]).intersection(*self._made) if ranks else set()
        self.shared = sorted(n for n in shared if len({made[n]["site"] for made in self._made}) == 1)
        """Loaders that all ranks made at the same line."""

    def made(self, loader: int) -> Line:
        """Return the facts about a loader."""
        return self._made[0][loader]

    def training_passes(self, loader: int) -> list[PassKey]:
        """Return the passes over a loader in which every rank trained."""
        keys = [
            {key for key, line in orders.items() if key[0] == loader and line["trained"]} for orders in self._orders
        ]
        return sorted(keys[0].intersection(*keys)) if keys else []

    def repeated(self, loader: int) -> list[PassKey]:
        """Return the first two passes with training that the same lines of the script started."""
        found: dict[str, list[PassKey]] = {}
        for key in self.training_passes(loader):
            found.setdefault(str(self.passes(key)[0]["stack"]), []).append(key)
        return next((keys[:2] for keys in found.values() if len(keys) > 1), [])

    def evaluation_passes(self, loader: int) -> list[PassKey]:
        """Return the passes over a loader that nobody ever trained on."""
        if loader in self.trained_on:
            return []
        keys = [
            {key for key, line in orders.items() if key[0] == loader and line["yielded"]} for orders in self._orders
        ]
        return sorted(keys[0].intersection(*keys)) if keys else []

    def orders(self, key: PassKey) -> list[Line]:
        """Return the order of a pass, by rank."""
        return [orders[key] for orders in self._orders]

    def passes(self, key: PassKey) -> list[Line]:
        """Return the start of a pass, by rank."""
        return [passes[key] for passes in self._passes]

    def all_passes(self, rank_index: int = 0) -> dict[PassKey, Line]:
        """Return all passes of a rank."""
        return self._passes[rank_index]

    def streams(self, key: PassKey) -> list[list[int]]:
        """Return the indices of a pass, by rank."""
        return [[index for batch in line["batches"] for index in batch] for line in self.orders(key)]

    def is_whole(self, key: PassKey) -> bool:
        """Tell whether the whole order of a pass is known on every rank."""
        return all(line["whole"] for line in self.orders(key))

    def loop_line(self, key: PassKey) -> str:
        """Return the line of the loop over a loader."""
        return self.passes(key)[0]["site"]

    def facts(self, loader: int) -> list[dict[str, str]] | None:
        """Return the digests of the data set, by rank; None where they are unknown."""
        found = []
        for passes in self._passes:
            facts = [line["facts"] for key, line in sorted(passes.items()) if key[0] == loader and line.get("facts")]
            if not facts:
                return None
            found.append(facts[0])
        return found

    def has_equal_samples(self, loader: int) -> bool | None:
        """Tell whether an index gives the same sample on every rank; None where samples could not be compared."""
        probes = []
        for passes in self._passes:
            found = [line["probe"] for key, line in sorted(passes.items()) if key[0] == loader and line.get("probe")]
            probes.append(found[0] if found else None)
        return None if None in probes else all(probe == probes[0] for probe in probes)

    def unequal_facts(self, loader: int) -> list[str]:
        """Return the contents of the data set that differ between ranks; none where its samples are equal."""
        if self.has_equal_samples(loader):
            return []
        facts = self.facts(loader) or []
        names = set(facts[0]).intersection(*facts) if facts else set()
        kinds = ("tensor", "array", "list")
        return sorted(n for n in names if len({f[n] for f in facts}) > 1 and all(f[n].startswith(kinds) for f in facts))

    def is_one_dataset(self, loader: int) -> bool:
        """Tell whether an index means the same sample on every rank, as far as the data set shows."""
        lengths = {made[loader]["length"] for made in self._made}
        return self.facts(loader) is not None and len(lengths) == 1 and not self.unequal_facts(loader)

    def has_same_content(self, key: PassKey) -> bool:
        """Tell whether batches of the ranks hold the same samples: some tensor, such as the labels, is equal."""
        batches = list(zip(*(line["digests"] for line in self.orders(key)), strict=False))
        return bool(batches) and all(
            any(len(set(leaf)) == 1 for leaf in zip(*batch, strict=False)) for batch in batches
        )


def by_line(findings: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the first of the values of each line."""
    found: dict[str, Any] = {}
    for site, value in findings:
        found.setdefault(site, value)
    return found


def lines_run(evidence: Evidence) -> dict[int, dict[str, set[int]]]:
    """Return the lines that each rank ran, by file."""
    found: dict[int, dict[str, set[int]]] = {}
    for rank, journal in evidence.ranks.items():
        found[rank] = {}
        for line in journal.of("lines"):
            for file, numbers in line["files"].items():
                found[rank].setdefault(file, set()).update(numbers)
    return found
