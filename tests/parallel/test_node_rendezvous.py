"""The rendezvous of agents, over a real store: nodes that come, are lost, return, and strangers that write to it."""

import socket
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch.distributed as dist

from paceline.core.errors import LostRankError, RanksError
from paceline.parallel import node_rendezvous
from paceline.parallel.node_rendezvous import STATE, NodeRendezvous, has_ended
from paceline.parallel.node_rounds import NodePlan, parse_round
from paceline.parallel.rendezvous import connect_nodes, connect_store, serve_nodes
from paceline.parallel.store_server import serve_store
from tests.conftest import LONGEST


@pytest.fixture
def store(monkeypatch) -> dist.TCPStore:
    """Return a store, with a rendezvous that is quick to notice."""
    for name, seconds in (("SECONDS_BETWEEN_BEATS", 0.05), ("SECONDS_UNTIL_LOST", 3.0), ("LAST_CALL", 1.0)):
        monkeypatch.setattr(node_rendezvous, name, seconds)
    return serve_nodes("127.0.0.1", 0)


class Node:
    """An agent in a thread: it joins rounds until it is lost or the job ends."""

    def __init__(self, store: dist.TCPStore, plan: NodePlan, pool: ThreadPoolExecutor) -> None:
        endpoint = f"127.0.0.1:{store.port}"
        self.changes: list[str | None] = []
        self.rendezvous = NodeRendezvous(
            plan,
            lambda limit: connect_store(endpoint, timeout=limit),
            address="127.0.0.1",
            begin=lambda _number, change: self.changes.append(change),
        )
        self._pool = pool

    def join(self) -> Future:
        return self._pool.submit(self.rendezvous.next_rendezvous)

    def vanish(self) -> None:
        """Stop answering, as a host that has lost its power."""
        self.rendezvous._ended.set()

    def wait_for_change(self) -> None:
        deadline = time.monotonic() + LONGEST
        while not self.rendezvous.num_nodes_waiting():
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture
def nodes(store):
    with ThreadPoolExecutor() as pool:
        started = []

        def start(**plan: Any) -> Node:
            usual: dict[str, Any] = {"timeout": 30.0}
            started.append(Node(store, NodePlan(**(usual | plan)), pool))
            return started[-1]

        yield start
        for node in started:
            node.vanish()


ELASTIC = {"fewest": 1, "most": 3, "replaces_lost": True}


def ranks(*joins: Future) -> list[tuple[int, int]]:
    return [(info.rank, info.world_size) for info in (each.result(LONGEST) for each in joins)]


def test_nodes_of_a_round_have_ranks_and_a_store_for_their_ranks(nodes):
    first, second = nodes(fewest=2, most=2), nodes(fewest=2, most=2)
    joins = first.join(), second.join()
    assert sorted(ranks(*joins)) == [(0, 2), (1, 2)]
    places = {(j.result().bootstrap_store_info.master_addr, j.result().bootstrap_store_info.master_port) for j in joins}
    ((host, port),) = places
    assert connect_store(f"{host}:{port}", timeout=5).num_keys() >= 0


def test_a_lost_node_is_replaced_by_one_that_comes(nodes):
    first, second = nodes(**ELASTIC), nodes(**ELASTIC)
    assert sorted(ranks(first.join(), second.join())) == [(0, 2), (1, 2)]
    second.vanish()
    first.wait_for_change()
    assert first.rendezvous.has_lost_node
    assert ranks(first.join()) == [(0, 1)]
    assert "left: 1 node train" in str(first.changes[-1])
    third = nodes(**ELASTIC)
    late = third.join()
    first.wait_for_change()
    assert not first.rendezvous.has_lost_node
    assert ranks(first.join(), late) == [(0, 2), (1, 2)]
    assert "joined: 2 nodes train" in str(first.changes[-1])
    assert first.rendezvous.round == third.rendezvous.round == 2


def test_a_round_that_gets_too_few_nodes_says_so(nodes):
    with pytest.raises(RanksError, match=r"waited 0.5 s for 2 nodes: only 1 node came \(.*\)"):
        nodes(fewest=2, most=2, timeout=0.5).join().result(LONGEST)


def test_two_nodes_of_one_rank_are_refused(nodes):
    joins = [nodes(fewest=3, most=3, node_rank=1, timeout=3).join() for _ in range(2)]
    refused = [str(join.exception(LONGEST)) for join in joins]
    assert any("another process is node 1 too" in text for text in refused), refused


def test_a_job_that_has_ended_takes_nobody_in(nodes, store):
    first, second = nodes(fewest=2, most=2), nodes(fewest=2, most=2)
    ranks(first.join(), second.join())
    assert not has_ended(store)
    assert first.rendezvous.shutdown()
    assert has_ended(store)
    with pytest.raises(LostRankError, match="another node has ended the job"):
        second.join().result(LONGEST)
    with pytest.raises(RanksError, match="the job of this rendezvous has ended"):
        nodes(fewest=2, most=2).join().result(LONGEST)


def test_a_node_that_is_started_again_has_its_rank_again(nodes):
    numbered = {"fewest": 2, "most": 2, "replaces_lost": True}
    first, second = nodes(node_rank=0, **numbered), nodes(node_rank=1, **numbered)
    ranks(first.join(), second.join())
    twin = nodes(node_rank=1, **numbered).join()
    assert "another process is node 1 too" in str(twin.exception(LONGEST))
    second.vanish()
    again = nodes(node_rank=1, **numbered).join()
    first.wait_for_change()
    assert ranks(first.join(), again) == [(0, 2), (1, 2)]


def test_a_node_lost_before_the_ranks_connect_is_replaced(nodes, monkeypatch):
    first, second = nodes(**ELASTIC), nodes(**ELASTIC)
    lost = min(first, second, key=lambda node: node.rendezvous._node)
    other = second if lost is first else first

    def vanish(*_: object, **__: object) -> None:
        lost.vanish()
        raise LostRankError("lost")

    monkeypatch.setattr(node_rendezvous, "serve_store", vanish)
    joins = lost.join(), other.join()
    assert isinstance(joins[0].exception(LONGEST), LostRankError)
    monkeypatch.setattr(node_rendezvous, "serve_store", serve_store)
    assert ranks(joins[1]) == [(0, 1)]


def test_a_lost_node_is_noticed_also_without_its_beat(nodes, store):
    first, second, third = nodes(**ELASTIC), nodes(**ELASTIC), nodes(**ELASTIC)
    ranks(first.join(), second.join(), third.join())
    third.vanish()
    time.sleep(0.5)  # its last beat
    store.delete_key(f"paceline/beat/{third.rendezvous._node}")
    first.wait_for_change()
    assert first.rendezvous.has_lost_node


@pytest.mark.parametrize("text", ["", "garbage", b"\xff\xfe", "[]", '{"number": "x"}', "\x00" * 100])
def test_a_stranger_who_writes_another_state_changes_nothing(nodes, store, text):
    first, second = nodes(**ELASTIC), nodes(**ELASTIC)
    ranks(first.join(), second.join())
    store.set(STATE, text)
    time.sleep(0.3)  # several looks
    assert not first.rendezvous.num_nodes_waiting()
    third = nodes(**ELASTIC).join()
    deadline = time.monotonic() + LONGEST
    while not third.done() and time.monotonic() < deadline:
        joins = [node.join() for node in (first, second) if node.rendezvous.num_nodes_waiting()]
        [join.result(LONGEST) for join in joins]
        time.sleep(0.05)
    assert third.done()


def test_a_store_that_was_started_again_learns_the_round_from_the_nodes(nodes, store):
    first, second = nodes(**ELASTIC), nodes(**ELASTIC)
    ranks(first.join(), second.join())
    second.vanish()
    first.wait_for_change()
    ranks(first.join())
    store.delete_key(STATE)
    deadline = time.monotonic() + LONGEST
    while not store.check([STATE]) or parse_round(store.get(STATE)) != first.rendezvous._mine:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert not first.rendezvous.num_nodes_waiting()


def test_a_store_listens_on_one_address():
    store = serve_store("127.0.0.1", 0, timeout=5)
    with pytest.raises(OSError, match=r"refused|unreachable"):
        connect_store(f"127.0.0.2:{store.port}", timeout=0.2)
    assert connect_store(f"127.0.0.1:{store.port}", timeout=5).port == store.port


def test_the_first_node_serves_a_store_unless_paceline_rendezvous_does():
    outside = serve_nodes("127.0.0.1", 0)
    plan = NodePlan(endpoint=f"127.0.0.1:{outside.port}", node_rank=0, fewest=2, most=2, timeout=5)
    assert connect_nodes(plan) is None
    port = outside.port
    del outside
    assert connect_nodes(NodePlan(endpoint=f"127.0.0.1:{port}", fewest=1, most=2, timeout=5)) is not None


def test_a_node_that_finds_no_store_says_so():
    with pytest.raises(
        RanksError, match=r"no store answered at 127.0.0.1:9 within 0.2 s: Connection refused"
    ) as failed:
        connect_nodes(NodePlan(endpoint="127.0.0.1:9", fewest=1, most=2, timeout=0.2, may_serve=False))
    assert "paceline rendezvous" in (failed.value.hint or "")


def test_a_port_that_another_program_has_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        plan = NodePlan(endpoint=f"127.0.0.1:{port}", node_rank=0, fewest=2, most=2, timeout=5)
        with pytest.raises(RanksError, match=f"port {port} on .* is taken") as refused:
            connect_nodes(plan)
    assert "--node-rank" in (refused.value.hint or "")
