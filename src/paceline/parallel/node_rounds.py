"""Which nodes train together: rounds that nodes join, agreed on through one text in a store. Pure functions."""

import json
from collections.abc import Iterable, Set
from dataclasses import asdict, dataclass, replace
from typing import Any

FORM = {
    "number": int, "is_complete": bool, "is_closed": bool, "members": list, "expected": list, "waiting": list,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """The nodes that train together until one of them is lost or another one is taken in."""

    number: int = 0
    is_complete: bool = False
    """Whether its nodes have started to train."""
    is_closed: bool = False
    """Whether the job has ended."""
    members: tuple[str, ...] = ()
    """The nodes, in the order of their ranks once the round is complete."""
    expected: tuple[str, ...] = ()
    """The nodes of the round before, and those that waited for this one: it is complete when all of them are here."""
    waiting: tuple[str, ...] = ()
    """The nodes that came after it was complete."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """All nodes that it names."""
        return tuple(dict.fromkeys((*self.members, *self.expected, *self.waiting)))


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePlan:
    """How the agent of a node finds those of the others."""

    endpoint: str | None = None
    """HOST:PORT of the store of all agents; None for a node that is alone."""
    node_rank: int | None = None
    fewest: int = 1
    most: int = 1
    timeout: float = 300.0
    may_serve: bool = True
    """Whether this node serves the store, unless another process does."""
    checks_all: bool = False
    """Whether to wait for all numbered nodes first, and to name those that are missing."""
    replaces_lost: bool = False
    """Whether the nodes continue without one that has stopped answering."""

    @property
    def is_elastic(self) -> bool:
        """Whether the job may continue with fewer nodes, or more."""
        return self.fewest < self.most


def round_text(state: Round) -> str:
    """Return a round as the text that the store holds."""
    return json.dumps(asdict(state))


def parse_round(text: bytes | str) -> Round | None:
    """Return the round that a text describes; None if it is anything else."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or values.keys() != FORM.keys():
        return None
    if any(type(values[key]) is not kind for key, kind in FORM.items()):
        return None
    lists: dict[str, Any] = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    if any(not isinstance(node, str) for nodes in lists.values() for node in nodes):
        return None
    return Round(**(values | lists))


def with_node(state: Round, node: str, *, lost: Set[str], plan: NodePlan, quiet: bool) -> Round:
    """Return the round after a node has asked to train in the next one.

    `lost` are the nodes that have stopped answering. `quiet` tells that nobody has come for a while: then the round
    is complete without those that are expected.
    """
    if state.is_complete and node not in state.members and _without(lost, state.members):
        return replace(state, waiting=_without(lost, (*state.waiting, node)))
    if state.is_complete:
        expected = _without(lost, (*state.members, *state.waiting))
        state = Round(number=state.number + 1, expected=expected)
    members = _without(lost, (*state.members, node))
    expected = _without(lost, state.expected)
    waiting = tuple(each for each in _without(lost, state.waiting) if each not in members)
    all_here = bool(expected) and set(expected) <= set(members)
    is_complete = len(members) >= plan.most or (len(members) >= plan.fewest and (quiet or all_here))
    if is_complete:
        members = _ranked(members, expected)[: plan.most]
    return replace(state, is_complete=is_complete, members=members, expected=expected, waiting=waiting)


def must_change(state: Round, number: int, *, lost: Set[str], plan: NodePlan) -> bool:
    """Tell whether a node that trains in the round of this number must leave it for the next one."""
    if state.number != number:
        return True
    living = _without(lost, state.members)
    if plan.replaces_lost and len(living) < len(state.members):
        return True
    return len(living) < plan.most and bool(_without(lost, state.waiting))


def node_rank_of(node: str) -> int | None:
    """Return the rank that a user gave a node, from its name."""
    number = node.partition("-")[0]
    return int(number) if number.isdecimal() else None


def node_name(node_rank: int | None, host: str, token: str, *, is_first: bool) -> str:
    """Return a name that no other node has, by which nodes are sorted in their first round."""
    place = ("a" if is_first else "b") if node_rank is None else f"{node_rank:06d}"
    return f"{place}-{host}-{token}"


def host_of(node: str) -> str:
    """Return the host of a node, from its name."""
    return node.partition("-")[2].rpartition("-")[0]


def _without(lost: Set[str], nodes: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(node for node in nodes if node not in lost))


def _ranked(members: Iterable[str], expected: tuple[str, ...]) -> tuple[str, ...]:
    """Return nodes in the order of their ranks: as numbered, or those of the round before first, as they were.

    So the lead stays where the run folder is, as long as its node lives.
    """

    def rank(node: str) -> tuple[int, str]:
        is_new = node_rank_of(node) is None and node not in expected
        return (len(expected) if is_new else expected.index(node) if node_rank_of(node) is None else 0, node)

    return tuple(sorted(members, key=rank))
