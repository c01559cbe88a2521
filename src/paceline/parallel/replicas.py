"""Comparing the replicas of all ranks bit by bit: which tensor differs on which ranks; saving the different ones."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.core.units import count, ranks_text
from paceline.core.world import World
from paceline.parallel.team import Team
from paceline.records.folder import RunFolder

NUM_SHOWN = 3
MOST_SAVED = 16
"""Number of differing tensors to save."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mismatch:
    """A tensor that differs between ranks."""

    name: str
    groups: tuple[tuple[int, ...], ...]
    """Ranks that agree with each other, the largest group first."""

    @property
    def sides(self) -> str:
        """Return the groups of ranks: "ranks 0,2,3 against rank 1"."""
        return " against ".join(ranks_text(group) for group in self.groups)


def check_replicas(named_tensors: Iterable[tuple[str, Tensor]], team: Team) -> list[Mismatch]:
    """Return the tensors that differ in a bit, shape or type, or are missing. Collective: every rank must call it.

    Sends one hash of all tensors, and names only after a mismatch. Hashing takes about 1 s per GB on a core with SHA
    instructions, as much as any hash that torch can compute, and moves tensors of a GPU to the host.
    """
    if team.world.size == 1:
        return []
    own = {name: short_hash(tensor) for name, tensor in named_tensors}
    if team.same(short_hash(torch.frombuffer(bytearray(repr(own).encode()), dtype=torch.uint8)) >> 1):
        return []
    seen = team.gather(own)
    names = dict.fromkeys(name for prints in seen for name in prints)
    grouped = {name: _agreeing([prints.get(name) for prints in seen]) for name in names}
    return [Mismatch(name=name, groups=groups) for name, groups in grouped.items() if len(groups) > 1]


@torch.no_grad()
def repair_replicas(mismatches: Sequence[Mismatch], tensors: Mapping[str, Tensor], team: Team) -> bool:
    """Give all ranks the tensors of the majority; False, and nothing is changed, where one has no majority. Collective.

    A tensor that some ranks lack, or have in another shape or type, cannot be repaired either.
    """
    forms = team.gather(
        {m.name: (tensors[m.name].shape, tensors[m.name].dtype) for m in mismatches if m.name in tensors}
    )
    for mismatch in mismatches:
        has_majority = 2 * len(mismatch.groups[0]) > team.world.size
        if not has_majority or len({theirs.get(mismatch.name) for theirs in forms}) > 1:
            return False
    for mismatch in mismatches:
        own = tensors[mismatch.name]
        received = own.detach().cpu().contiguous().clone()
        team.broadcast(
            torch.view_as_real(received) if received.is_complex() else received, source=mismatch.groups[0][0]
        )
        if team.world.rank not in mismatch.groups[0]:
            own.copy_(received)
    return True


def describe_mismatches(mismatches: Sequence[Mismatch], step: int) -> str:
    """Describe in a sentence what differs after a step: the first tensors with the ranks, and the number of others."""
    shown = ", ".join(f"{mismatch.name} ({mismatch.sides})" for mismatch in mismatches[:NUM_SHOWN])
    more = len(mismatches) - NUM_SHOWN
    rest = f" and {count(more)} more" if more > 0 else ""
    return f"the model differs between ranks after step {count(step)}: {shown}{rest}"


def short_hash(tensor: Tensor) -> int:
    """Return 64 bits that depend on every bit of a tensor, its shape and its type, but not on its memory layout."""
    flat = tensor.detach().cpu().contiguous().flatten()
    digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode(), usedforsecurity=False)
    digest.update(flat.view(torch.uint8).numpy().data)
    return int.from_bytes(digest.digest()[:8], "little")


def _agreeing(prints: Sequence[int | None]) -> tuple[tuple[int, ...], ...]:
    """Return the ranks that agree, the largest group first and then the one with the lowest rank."""
    groups: dict[int | None, list[int]] = {}
    for rank, bits in enumerate(prints):
        groups.setdefault(bits, []).append(rank)
    return tuple(sorted((tuple(group) for group in groups.values()), key=lambda group: (-len(group), group[0])))


def save_mismatches(
    mismatches: Sequence[Mismatch], tensors: Mapping[str, Tensor], folder: RunFolder, world: World, step: int
) -> None:
    """Write this rank's version of the tensors that differ, for `paceline compare`."""
    kept = mismatches[:MOST_SAVED]
    path = folder.rank_tensors(world.rank)
    path.parent.mkdir(parents=True, exist_ok=True)  # without a shared disk only the lead has created it
    held = {
        "model": {mismatch.name: tensors[mismatch.name].cpu() for mismatch in kept if mismatch.name in tensors},
        "step": step,
        "sides": {mismatch.name: mismatch.sides for mismatch in kept},
        "between": {mismatch.name: [group[0] for group in mismatch.groups[:2]] for mismatch in kept},
    }
    torch.save(held, path)
