"""Rendezvous of ranks started by hand, and of launchers: over a port, or over a shared file that may be stale."""

import errno
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

import torch.distributed as dist

from paceline.core.errors import RanksError
from paceline.core.units import plural
from paceline.core.world import World
from paceline.parallel.network import peer_address
from paceline.parallel.node_rounds import NodePlan
from paceline.parallel.ports import wait_for_listener
from paceline.parallel.store_server import serve_store
from paceline.records.writer import replacing

SECONDS_BETWEEN_LOOKS = 0.05
SECONDS_TO_ANSWER = 3.0
MARK = "paceline/store"
"""A key of every store of agents."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Peers:
    """Processes that connect to each other, as one of them sees it: ranks, or the launchers of nodes."""

    kind: Literal["rank", "node"] = "rank"
    index: int
    size: int
    place: str
    """tcp://HOST:PORT or file:///path for ranks, HOST:PORT for nodes."""
    timeout: float

    @property
    def index_flag(self) -> str:
        """The flag for the index of this process."""
        return "--rank" if self.kind == "rank" else "--node-rank"

    @property
    def size_flag(self) -> str:
        """The flag for the number of processes."""
        return "--world-size" if self.kind == "rank" else "--nnodes"

    def named(self, indices: Iterable[int]) -> str:
        """Return the name of one or several of them."""
        return f"{self.kind} " + ", ".join(map(str, sorted(indices)))


def open_store(world: World, timeout: float) -> dist.Store | None:
    """Return the store over which the ranks exchange addresses; None if torchrun provides it.

    Collective: every rank must call it; it returns once all ranks have connected.
    """
    kind, _, place = world.init_method.partition("://")
    if kind == "agent":  # of our own launcher
        return connect_store(place, timeout=timeout)
    if kind == "env":
        return None
    peers = Peers(index=world.rank, size=world.size, place=world.init_method, timeout=timeout)
    if kind == "file":
        return FileRendezvous(Path(place), peers).open()
    store = _connect(place, peers)
    wait_for_peers(store, peers)
    return store


def connect_nodes(plan: NodePlan) -> dist.TCPStore | None:
    """Return the store of all agents if this one serves it, as nobody else does, once it can be reached."""
    assert plan.endpoint is not None
    host, _, port = plan.endpoint.rpartition(":")
    peers = Peers(kind="node", index=plan.node_rank or 0, size=plan.most, place=plan.endpoint, timeout=plan.timeout)
    served = None
    if plan.may_serve and not _listens(host, int(port)):
        store = served = _connect(plan.endpoint, peers)
        store.set(MARK, socket.gethostname())
    else:
        if plan.may_serve and not _is_ours(plan.endpoint):
            raise _taken(port, peers)
        try:
            store = connect_store(plan.endpoint, timeout=plan.timeout)
        except OSError as cause:
            raise RanksError(
                f"no store answered at {plan.endpoint} within {plan.timeout:g} s: {cause.strerror or cause}",
                hint="start node 0, or paceline rendezvous, at this address",
            ) from cause
    if plan.checks_all:
        wait_for_peers(store, peers)
    return served


def serve_nodes(host: str, port: int) -> dist.TCPStore:
    """Return a store of agents that this process serves, on a host that does not train."""
    peers = Peers(kind="node", index=0, size=0, place=f"{host}:{port}", timeout=300.0)
    store = _connect(peers.place, peers)
    store.set(MARK, socket.gethostname())
    return store


def connect_store(endpoint: str, *, timeout: float) -> dist.TCPStore:
    """Return a connection to the store at an address."""
    host, _, port = endpoint.rpartition(":")
    host = peer_address(host)
    wait_for_listener(host, int(port), timeout)
    return dist.TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=timeout))


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((peer_address(host), port), timeout=2).close()
    except OSError:
        return False
    return True


def _is_ours(endpoint: str) -> bool:
    """Tell whether a store of Paceline answers at an address, rather than another program.

    Torch waits without a limit for the answer of a program that accepts a connection and says nothing.
    """
    found: list[bool] = []

    def ask() -> None:
        with suppress(OSError, RuntimeError):
            found.append(connect_store(endpoint, timeout=SECONDS_TO_ANSWER).check([MARK]))

    asking = threading.Thread(target=ask, name="rendezvous-probe", daemon=True)
    asking.start()
    asking.join(2 * SECONDS_TO_ANSWER)
    return found == [True]


def wait_for_peers(store: dist.Store, peers: Peers) -> None:
    """Wait until every peer has registered; name peers that are missing, appear twice, or expect another number."""
    deadline = time.monotonic() + peers.timeout
    missing = set(range(peers.size))
    try:
        if store.add(f"came/{peers.index}", 1) > 1:
            raise RanksError(
                f"{peers.place}: another process is {peers.named([peers.index])} too",
                hint=f"give every {'process' if peers.kind == 'rank' else 'node'} its own {peers.index_flag}, "
                f"from 0 to {peers.size - 1}",
            )
        store.set(f"here/{peers.index}", str(peers.size))
        while missing:
            for index in sorted(missing):
                if store.check([f"here/{index}"]):
                    _compare_counts(index, int(store.get(f"here/{index}")), peers)
                    missing.remove(index)
            if missing and time.monotonic() > deadline:
                raise missing_peers(missing, peers)
            time.sleep(SECONDS_BETWEEN_LOOKS if missing else 0)
    except dist.DistNetworkError as cause:  # peer 0 holds the store, and timed out first
        raise RanksError(
            f"{peers.place}: {peers.kind} 0 exited before all {peers.size} {peers.kind}s had connected; "
            f"missing: {peers.named(missing)}",
            hint=f"see the output of {peers.kind} 0 and of the missing {peers.kind}s",
        ) from cause


def _compare_counts(index: int, size: int, peers: Peers) -> None:
    if size != peers.size:
        raise RanksError(
            f"{peers.named([index])} expects {plural(size, peers.kind)}, "
            f"{peers.named([peers.index])} expects {peers.size}",
            hint=f"give every {peers.kind} the same {peers.size_flag}",
        )


def missing_peers(missing: Iterable[int], peers: Peers) -> RanksError:
    """Return the error that names the missing peers."""
    return RanksError(
        f"{peers.place}: waited {peers.timeout:g} s for {peers.size} {peers.kind}s, "
        f"but {peers.named(missing)} did not connect",
        hint=f"see the output of the missing {peers.kind}s; the address must be reachable from their hosts; "
        "to wait longer, raise --timeout",
    )


def _connect(address: str, peers: Peers) -> dist.TCPStore:
    host, _, port = address.rpartition(":")
    if not port.isdigit() or not host:
        raise RanksError(f"{peers.place} is not an address", hint="use tcp://HOST:PORT")
    is_first = peers.index == 0
    limit = timedelta(seconds=peers.timeout)
    try:
        if not is_first:
            served = peer_address(host)
            wait_for_listener(served, int(port), peers.timeout)
            return dist.TCPStore(served, int(port), is_master=False, timeout=limit, wait_for_workers=False)
        return serve_store(host, int(port), timeout=peers.timeout)
    except (OSError, RuntimeError) as cause:  # torch's own errors are of the second kind
        if isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE:
            raise _taken(port, peers) from cause
        who = f"{peers.named([peers.index])} could not " + ("listen" if is_first else f"reach {peers.kind} 0")
        raise RanksError(
            f"{who} at {host}:{port} within {peers.timeout:g} s",
            hint=f"is {peers.kind} 0 running, on {host}, with the same address, and is the port open?",
        ) from cause


def _taken(port: str, peers: Peers) -> RanksError:
    return RanksError(
        f"port {port} on {socket.gethostname()} is taken",
        hint=f"is {peers.kind} 0 already running? give every {peers.kind} its own {peers.index_flag}, "
        "or choose another port",
    )


class FileRendezvous:
    """Rendezvous over a shared folder next to a path, in any order of arrival and despite files of earlier attempts.

    Every rank writes a hello with a random nonce. Rank 0 answers each nonce with a new token for this attempt; a rank
    that finds its nonce answered acknowledges the token. When every rank has acknowledged the token, which no rank of
    an earlier attempt can, rank 0 writes go, and all ranks open the store of that name.
    """

    def __init__(self, path: Path, peers: Peers) -> None:
        self._folder = path.with_name(path.name + ".rendezvous")
        self._peers = peers
        self._deadline = time.monotonic() + peers.timeout

    def open(self) -> dist.Store:
        """Wait for all ranks, and return the store of this attempt."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as cause:
            raise RanksError(f"cannot use {self._folder}: {cause.strerror}", hint="use a shared folder") from cause
        token = self._lead() if self._peers.index == 0 else self._follow()
        store = dist.FileStore(str(self._folder / f"store-{token}"), self._peers.size)
        store.set_timeout(timedelta(seconds=self._peers.timeout))
        return store

    def _lead(self) -> str:
        token = secrets.token_hex(8)
        others = range(1, self._peers.size)
        waiting = set(others)
        while waiting:
            for rank in waiting:
                nonce = self._read(f"hello-{rank}")
                if nonce:
                    self._write(f"answer-{rank}", f"{nonce} {token}")
            waiting = {rank for rank in waiting if not self._read(f"acknowledge-{rank}").endswith(token)}
            self._pause(waiting)
        for stale in self._folder.glob("store-*"):
            stale.unlink(missing_ok=True)
        self._write("go", token)
        return token

    def _follow(self) -> str:
        nonce = secrets.token_hex(8)
        rank = self._peers.index
        self._write(f"hello-{rank}", nonce)
        while True:
            answered, _, token = self._read(f"answer-{rank}").partition(" ")
            if answered == nonce:
                self._write(f"acknowledge-{rank}", f"{nonce} {token}")
                if self._read("go") == token:
                    return token
            self._pause({0})

    def _pause(self, missing: set[int]) -> None:
        if missing and time.monotonic() > self._deadline:
            raise missing_peers(missing, self._peers)
        if missing:
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def _read(self, name: str) -> str:
        try:
            return (self._folder / name).read_text(encoding="ascii")
        except OSError:
            return ""

    def _write(self, name: str, text: str) -> None:
        if self._read(name) == text:
            return
        with replacing(self._folder / name, durable=False) as scratch:
            scratch.write_text(text, encoding="ascii")


def remove_rendezvous_files(world: World) -> None:
    """Remove the files of a file:// rendezvous; the lead calls it when all ranks have left."""
    kind, _, place = world.init_method.partition("://")
    if kind == "file" and world.is_lead:
        shutil.rmtree(Path(place).with_name(Path(place).name + ".rendezvous"), ignore_errors=True)
