"""Where the agents of nodes agree who trains: a rendezvous of torchrun that notices lost nodes and takes in new ones.

Torch's own keeps its state as a pickle, which any process that reaches the port can replace, counts restarts
separately on each node, and does not act on a node that has stopped answering.
"""

import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from paceline.core.errors import LostRankError, RanksError
from paceline.core.units import plural
from paceline.parallel.node_rounds import (
    NodePlan,
    Round,
    host_of,
    must_change,
    node_name,
    node_rank_of,
    parse_round,
    round_text,
    with_node,
)
from paceline.parallel.rendezvous import connect_nodes, connect_store
from paceline.parallel.store_server import serve_store

BACKEND = "paceline"
STATE = "paceline/round"
SECONDS_BETWEEN_BEATS = 1.0
SECONDS_UNTIL_LOST = 8.0
"""A node that has not answered for this long is lost, and the others continue without it."""
LAST_CALL = 5.0
"""Seconds that a round of the fewest nodes waits for more of them."""
Begin = Callable[[int, str | None], None]
"""Called with the number of a round that begins, and a sentence on what has changed since the one before."""
Open = Callable[[float], dist.Store]
"""Connects to the store of all agents, with this timeout."""


@dataclass(kw_only=True)
class Beats:
    """When each node was last heard of: a count that it raises, timed by our own clock."""

    seen: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    heard: set[str] = field(default_factory=set)
    """Nodes that have raised their count since it was first read: they lived then."""

    def note(self, counts: Mapping[str, bytes], now: float) -> None:
        """Remember the counts of all nodes that were read."""
        for node, count in counts.items():
            if node in self.seen and count not in (b"", self.seen[node][0]):
                self.heard.add(node)
            if node not in self.seen or self.seen[node][0] != count:
                self.seen[node] = (count, now)

    def lost(self, now: float) -> set[str]:
        """Return the nodes whose count has not changed for too long."""
        return {node for node, (_, last) in list(self.seen.items()) if now - last > SECONDS_UNTIL_LOST}


class NodeRendezvous(RendezvousHandler):
    """The rendezvous of one node's agent.

    `open_store` returns another connection to the store of all agents. A thread tells the others once per second that
    this node lives, and learns whether the nodes must change; training goes on while the store cannot be reached.
    """

    def __init__(self, plan: NodePlan, open_store: Open, *, address: str, begin: Begin) -> None:
        self.plan = plan
        self._open_store = open_store
        self._address = address
        self._begin = begin
        self._node = node_name(plan.node_rank, socket.gethostname(), secrets.token_hex(4), is_first=plan.may_serve)
        self._store = open_store(plan.timeout)
        self._server: dist.Store | None = None
        self.served: dist.Store | None = None
        """The store of all agents, if this process serves it."""
        self._mine: Round | None = None
        self._known, self._changed = Round(), 0.0
        """The last round that was seen, and since when."""
        self._beats = Beats()
        self._ended = threading.Event()
        self._must_change = False
        self.has_lost_node = False
        """Whether a node of this round has stopped answering: its ranks can neither compute nor save any more."""
        threading.Thread(target=self._beat, name="node-rendezvous", daemon=True).start()

    def get_backend(self) -> str:
        """Return the name under which it is registered."""
        return BACKEND

    def get_run_id(self) -> str:
        """Return a name of the job for torchrun's records."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Ranks connect to a store that the agent of the first node serves, a new one in each round."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Join the next round, and return once it is complete."""
        before = self._mine
        state = self._join(None if before is None else before.number)
        self._mine, self._must_change, self.has_lost_node = state, False, False
        self._begin(state.number, None if before is None else describe_change(before, state, self.plan))
        rank = state.members.index(self._node)
        shared = dist.PrefixStore(f"paceline/{state.number}", self._store)
        if rank == 0:
            self._server = server = serve_store(self._address, 0, timeout=self.plan.timeout)
            shared.set("address", f"{server.host}:{server.port}")
        deadline = time.monotonic() + self.plan.timeout
        while not shared.check(["address"]):
            if self._must_change or self._known.is_closed:  # the first node was lost before it served the store
                return self.next_rendezvous()
            if time.monotonic() > deadline:
                raise LostRankError(f"{host_of(state.members[0])} served no store within {self.plan.timeout:g} s")
            time.sleep(0.05)
        host, _, port = shared.get("address").decode().rpartition(":")
        info = RendezvousStoreInfo(master_addr=host, master_port=int(port))
        return RendezvousInfo(shared, rank, len(state.members), info)

    @property
    def round(self) -> int:
        """The number of the round that this node trains in."""
        return 0 if self._mine is None else self._mine.number

    def leave_round(self) -> None:
        """Make this agent join the next round: its ranks have stopped because the nodes change."""
        self._must_change = True

    def num_nodes_waiting(self) -> int:
        """Return 1 if the nodes must change: torchrun then stops its ranks and joins the next round."""
        return int(self._must_change)

    def is_closed(self) -> bool:
        """Tell whether the job has ended."""
        return self._known.is_closed

    def set_closed(self) -> None:
        """End the job for all nodes."""
        self._ended.set()
        with suppress(RuntimeError):
            text, state = self._read(self._store)
            self._store.compare_set(STATE, text, round_text(replace(state, is_closed=True)))

    def shutdown(self) -> bool:
        """End the job for all nodes; the store may be gone already."""
        self.set_closed()
        return True

    def _join(self, before: int | None) -> Round:
        self._changed = began = time.monotonic()
        deadline = began + self.plan.timeout
        while True:
            try:
                text, state = self._read(self._store)
            except RuntimeError:
                self._store = self._reconnected(deadline)
                continue
            now = time.monotonic()
            if state.is_closed:
                raise self._has_ended(before)
            if state.is_complete and self._node in state.members and state.number != before:
                return state
            lost, quiet = self._beats.lost(now) - {self._node}, now - self._changed > LAST_CALL
            after = with_node(state, self._node, lost=lost, plan=self.plan, quiet=quiet)
            is_unclear = self._has_same_rank(after) and now - began < 3 * SECONDS_BETWEEN_BEATS
            if after != state and not is_unclear:
                with suppress(RuntimeError):
                    self._store.compare_set(STATE, text, round_text(after))
            elif now > deadline:
                raise self._too_few(after)
            else:
                time.sleep(0.1)

    def _has_ended(self, before: int | None) -> RanksError:
        if before is not None:
            return LostRankError("another node has ended the job", hint="see the output of the other nodes")
        return RanksError("the job of this rendezvous has ended", hint="start all its nodes, and the store, again")

    def _reconnected(self, deadline: float) -> dist.Store:
        while True:
            try:
                return self._open_store(self.plan.timeout)
            except (RuntimeError, OSError) as problem:
                if self._known.is_closed:
                    raise self._has_ended(self.round) from problem
                if time.monotonic() > deadline:
                    raise RanksError(
                        f"the store of the rendezvous did not answer for {self.plan.timeout:g} s: {problem}",
                        hint="with paceline rendezvous on another host, the job survives the loss of any node",
                    ) from problem
                time.sleep(0.5)

    def _has_same_rank(self, state: Round) -> bool:
        """Tell whether another node has our rank: perhaps an earlier start of ours, now lost. Raise if it lives."""
        mine = node_rank_of(self._node)
        same = [node for node in state.members if node_rank_of(node) == mine and node != self._node]
        if mine is None or not same:
            return False
        if self._node not in state.waiting or same[0] in self._beats.heard:
            raise RanksError(
                f"another process is node {mine} too, on {host_of(same[0])}",
                hint=f"give every node its own --node-rank, from 0 to {self.plan.most - 1}",
            )
        return True

    def _too_few(self, state: Round) -> RanksError:
        here = ", ".join(host_of(node) for node in state.members)
        if state.is_complete:
            why = f"it was not taken in: {plural(len(state.members), 'node')} train already"
        else:
            why = f"only {plural(len(state.members), 'node')} came"
        return RanksError(
            f"waited {self.plan.timeout:g} s for {self.plan.fewest} nodes: {why} ({here})",
            hint="start more nodes with the same --rendezvous; to wait longer, raise --timeout",
        )

    def _read(self, store: dist.Store) -> tuple[str, Round]:
        """Return the round of the store, and its text.

        What is no round, or an older one as in a store that was started again, is replaced by the last one seen.
        """
        text = store.compare_set(STATE, "", round_text(Round()))
        state, known = parse_round(text), self._known
        if state is None:  # not compared: torch passes only UTF-8 as a str
            store.set(STATE, round_text(known))
            text, state = round_text(known).encode(), known
        elif state.number < known.number:
            text = store.compare_set(STATE, text.decode(), round_text(known))
            state = parse_round(text) or known
        if state != known:
            self._known, self._changed = state, time.monotonic()
        return text.decode(errors="replace"), state

    def _beat(self) -> None:
        store, count = None, 0
        while not self._ended.wait(SECONDS_BETWEEN_BEATS if count else 0):
            count += 1
            try:
                store = store or self._open_store(SECONDS_UNTIL_LOST)
                store.set(f"paceline/beat/{self._node}", str(count))
                _, state = self._read(store)
                keys = {node: f"paceline/beat/{node}" for node in state.nodes if node != self._node}
                # get waits for a missing key, as of a node that was lost early or before the store was started again
                counts = {node: store.get(key) if store.check([key]) else b"" for node, key in keys.items()}
                self._judge(state, counts)
            except (RuntimeError, OSError):
                store = None
                self._beats = Beats()  # without the store, no count could change

    def _judge(self, state: Round, counts: Mapping[str, bytes]) -> None:
        now = time.monotonic()
        self._beats.note(counts, now)
        mine = self._mine
        if mine is None or state.number < mine.number:  # it was read before we joined this round
            return
        lost = self._beats.lost(now)
        self.has_lost_node = self.plan.replaces_lost and bool(lost.intersection(mine.members))
        if state.is_closed or not must_change(state, mine.number, lost=lost, plan=self.plan):
            return
        self._must_change = True


def has_ended(store: dist.Store) -> bool:
    """Tell whether the job whose nodes connect to this store has ended."""
    state = parse_round(store.get(STATE)) if store.check([STATE]) else None
    return state is not None and state.is_closed


def describe_change(before: Round, after: Round, plan: NodePlan) -> str:
    """Describe in a sentence how the nodes of a round differ from those of the round before."""
    left = [host_of(node) for node in before.members if node not in after.members]
    came = [host_of(node) for node in after.members if node not in before.members]
    changes = [f"{', '.join(names)} {verb}" for names, verb in ((left, "left"), (came, "joined")) if names]
    if plan.most == 1:
        return "the ranks start again"
    return f"{'; '.join(changes) or 'the ranks start again'}: {plural(len(after.members), 'node')} train on"


def node_rendezvous(plan: NodePlan, begin: Begin) -> NodeRendezvous:
    """Return the rendezvous of this node, with a store that is served here or found at its endpoint."""
    if plan.endpoint is None:
        server = serve_store("127.0.0.1", 0, timeout=plan.timeout)
        endpoint = f"127.0.0.1:{server.port}"
    else:
        server, endpoint = connect_nodes(plan), plan.endpoint
    rendezvous = NodeRendezvous(
        plan, lambda limit: connect_store(endpoint, timeout=limit), address=endpoint.rpartition(":")[0], begin=begin
    )
    rendezvous.served = server  # lives as long as the rendezvous
    return rendezvous
