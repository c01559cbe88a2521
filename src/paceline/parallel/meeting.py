"""How ranks started by hand, and launchers, find each other: over a port, or over a shared file that may be stale."""

import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

import torch.distributed as dist

from paceline.core.errors import RanksError
from paceline.core.units import plural
from paceline.core.world import World
from paceline.parallel.ports import wait_for_listener

SECONDS_BETWEEN_LOOKS = 0.05


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
        """The flag that says which of them this is."""
        return "--rank" if self.kind == "rank" else "--node-rank"

    @property
    def size_flag(self) -> str:
        """The flag that says how many there are."""
        return "--world-size" if self.kind == "rank" else "--nnodes"

    def named(self, indices: Iterable[int]) -> str:
        """Return the name of one or several of them."""
        return f"{self.kind} " + ", ".join(map(str, sorted(indices)))


def open_store(world: World, timeout: float) -> dist.Store | None:
    """Return the store over which the ranks exchange addresses; None where torchrun brings its own.

    Collective: every rank must call it, and returns once all ranks are known to be there.
    """
    kind, _, place = world.meeting.partition("://")
    if kind == "env":
        return None
    peers = Peers(index=world.rank, size=world.size, place=world.meeting, timeout=timeout)
    if kind == "file":
        return FileMeeting(Path(place), peers).open()
    store = _connect(place, peers)
    roll_call(store, peers)
    return store


def open_node_store(*, node_rank: int, nnodes: int, rendezvous: str, timeout: float) -> dist.Store:
    """Return a store of all launchers once they are there; torchrun in this process shares the server that it holds.

    Collective: the launcher of every node must call it.
    """
    peers = Peers(kind="node", index=node_rank, size=nnodes, place=rendezvous, timeout=timeout)
    store = _connect(rendezvous, peers)
    roll_call(store, peers)
    return store


def roll_call(store: dist.Store, peers: Peers) -> None:
    """Wait until every peer has said that it is here; name those that have not, came twice, or count differently."""
    deadline = time.monotonic() + peers.timeout
    missing = set(range(peers.size))
    try:
        if store.add(f"came/{peers.index}", 1) > 1:
            raise RanksError(
                f"{peers.place}: another process says that it is {peers.named([peers.index])} too",
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
    except dist.DistNetworkError as cause:  # the first holds the store, and was the first to give up
        raise RanksError(
            f"{peers.place}: {peers.kind} 0 left before all {peers.size} {peers.kind}s had come; "
            f"{peers.named(missing)} had not",
            hint=f"look at what {peers.kind} 0 and those {peers.kind}s printed",
        ) from cause


def _compare_counts(index: int, size: int, peers: Peers) -> None:
    if size != peers.size:
        raise RanksError(
            f"{peers.named([index])} counts {plural(size, peers.kind)}, "
            f"{peers.named([peers.index])} counts {peers.size}",
            hint=f"give every {peers.kind} the same {peers.size_flag}",
        )


def missing_peers(missing: Iterable[int], peers: Peers) -> RanksError:
    """Return the error that says who did not come."""
    return RanksError(
        f"{peers.place}: waited {peers.timeout:g} s for {peers.size} {peers.kind}s, "
        f"and {peers.named(missing)} did not come",
        hint=f"look at what those {peers.kind}s printed; the address must be reachable from their hosts; "
        "--timeout waits longer",
    )


def _connect(address: str, peers: Peers) -> dist.TCPStore:
    host, _, port = address.rpartition(":")
    if not port.isdigit() or not host:
        raise RanksError(f"{peers.place} is not an address", hint="use tcp://HOST:PORT")
    is_first = peers.index == 0
    limit = timedelta(seconds=peers.timeout)
    try:
        if not is_first:
            wait_for_listener(host, int(port), peers.timeout)
        return dist.TCPStore(
            host,
            int(port),
            is_master=is_first,
            timeout=limit,
            wait_for_workers=False,
            multi_tenant=peers.kind == "node",
        )
    except (OSError, RuntimeError) as cause:  # torch's own errors are of the second kind
        if "EADDRINUSE" in str(cause) or "address already in use" in str(cause).lower():
            raise RanksError(
                f"port {port} on {socket.gethostname()} is taken",
                hint=f"is {peers.kind} 0 running already? give every {peers.kind} its own {peers.index_flag}, "
                "or choose another port",
            ) from cause
        who = f"{peers.named([peers.index])} could not " + ("listen" if is_first else f"reach {peers.kind} 0")
        raise RanksError(
            f"{who} at {host}:{port} within {peers.timeout:g} s",
            hint=f"is {peers.kind} 0 running, on {host}, with the same address, and is the port open?",
        ) from cause


class FileMeeting:
    """Meeting over a shared folder beside a path, whatever earlier attempts left there and whoever comes first.

    Every rank writes a hello with a nonce of its own. Rank 0 answers each nonce with the token of this attempt, which
    it has just drawn; a rank that finds its nonce answered acknowledges the token. When rank 0 has seen every rank
    acknowledge its token, which no rank of an earlier attempt can, it says go, and all open the store of that name.
    """

    def __init__(self, path: Path, peers: Peers) -> None:
        self._folder = path.with_name(path.name + ".meeting")
        self._peers = peers
        self._deadline = time.monotonic() + peers.timeout

    def open(self) -> dist.Store:
        """Meet, and return the store of this attempt."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as cause:
            raise RanksError(f"cannot meet at {self._folder}: {cause.strerror}", hint="use a shared folder") from cause
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
        scratch = self._folder / f".{name}.{socket.gethostname()}.{os.getpid()}"
        scratch.write_text(text, encoding="ascii")
        scratch.replace(self._folder / name)


def leave_meeting(world: World) -> None:
    """Remove what a file meeting wrote; the lead calls it when all have left."""
    kind, _, place = world.meeting.partition("://")
    if kind == "file" and world.is_lead:
        shutil.rmtree(Path(place).with_name(Path(place).name + ".meeting"), ignore_errors=True)
