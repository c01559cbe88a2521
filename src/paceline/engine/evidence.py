"""What ranks leave behind when they no longer hold the same model: each its own version of the tensors that differ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.analysis.tensors import Comparison, compare_tensors
from paceline.core.world import World
from paceline.engine.stored import StoredTensor
from paceline.parallel.replicas import Mismatch
from paceline.records.folder import RunFolder

MOST_TENSORS = 16
"""Tensors that are kept, the first ones: enough to see what happened."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """The first tensor in which the ranks of a run differ."""

    step: int
    name: str
    sides: str
    """Who stands against whom: "ranks 0,2,3 against rank 1"."""
    difference: Comparison
    """Between the first ranks of two sides."""


def leave_evidence(
    mismatches: Sequence[Mismatch], tensors: Mapping[str, Tensor], folder: RunFolder, world: World, step: int
) -> None:
    """Write this rank's version of the tensors that differ, for `paceline compare`."""
    kept = mismatches[:MOST_TENSORS]
    path = folder.rank_tensors(world.rank)
    path.parent.mkdir(parents=True, exist_ok=True)  # on a node of its own disk only the lead has made it
    held = {
        "model": {mismatch.name: tensors[mismatch.name].cpu() for mismatch in kept if mismatch.name in tensors},
        "step": step,
        "sides": {mismatch.name: mismatch.sides for mismatch in kept},
        "between": {mismatch.name: [group[0] for group in mismatch.groups[:2]] for mismatch in kept},
    }
    torch.save(held, path)


def read_evidence(folder: RunFolder) -> Evidence | None:
    """Return what set the ranks of a run apart; None when they never differed."""
    if not folder.rank_tensors(0).is_file():
        return None
    lead = torch.load(folder.rank_tensors(0), weights_only=True)
    name, sides = next(iter(lead["sides"].items()))
    files = [torch.load(folder.rank_tensors(rank), weights_only=True) for rank in lead["between"][name]]
    first, second = (StoredTensor(held["model"][name]) for held in files)
    return Evidence(step=lead["step"], name=name, sides=sides, difference=compare_tensors(name, first, second))
