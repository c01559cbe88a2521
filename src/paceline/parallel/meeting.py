"""How ranks that were started by hand find each other: over a port, or over a shared file that may be stale."""

import os
import secrets
import shutil
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from paceline.core.errors import RanksError
from paceline.core.units import plural
from paceline.core.world import World

SECONDS_BETWEEN_LOOKS = 0.05


def open_store(world: World, timeout: float) -> dist.Store | None:
    """Return the store over which the ranks exchange addresses; None where torchrun brings its own.

    Collective: every rank must call it, and returns once all ranks are known to be there.
    """
    kind, _, place = world.meeting.partition("://")
    if kind == "env":
        return None
    if kind == "file":
        return FileMeeting(Path(place), world, timeout).open()
    host, _, port = place.rpartition(":")
    if not port.isdigit() or not host:
        raise RanksError(f"{world.meeting} is no place to meet", hint="use tcp://HOST:PORT")
    store = _connect(host, int(port), world, timeout)
    roll_call(store, world, timeout)
    return store


def roll_call(store: dist.Store, world: World, timeout: float) -> None:
    """Wait until every rank has said that it is here; name those who have not, came twice, or count differently."""
    deadline = time.monotonic() + timeout
    missing = set(range(world.size))
    try:
        if store.add(f"came/{world.rank}", 1) > 1:
            raise RanksError(
                f"{world.meeting}: another process says that it is rank {world.rank} too",
                hint=f"give every process a --rank of its own, from 0 to {world.size - 1}",
            )
        store.set(f"here/{world.rank}", str(world.size))
        while missing:
            for rank in sorted(missing):
                if store.check([f"here/{rank}"]):
                    _compare_counts(rank, int(store.get(f"here/{rank}")), world)
                    missing.remove(rank)
            if missing and time.monotonic() > deadline:
                raise missing_ranks(missing, world, timeout)
            time.sleep(SECONDS_BETWEEN_LOOKS if missing else 0)
    except dist.DistNetworkError as cause:  # rank 0 holds the store, and was the first to give up
        raise RanksError(
            f"{world.meeting}: rank 0 left before all {world.size} ranks had come; {_ranks(missing)} had not",
            hint="look at what rank 0 and those ranks printed",
        ) from cause


def _compare_counts(rank: int, size: int, world: World) -> None:
    if size != world.size:
        raise RanksError(
            f"rank {rank} counts {plural(size, 'rank')}, rank {world.rank} counts {world.size}",
            hint="give every rank the same --world-size",
        )


def _ranks(ranks: Iterable[int]) -> str:
    return "rank " + ", ".join(map(str, sorted(ranks)))


def missing_ranks(missing: Iterable[int], world: World, timeout: float) -> RanksError:
    """Return the error that says who did not come."""
    return RanksError(
        f"{world.meeting}: waited {timeout:g} s for {world.size} ranks, and {_ranks(missing)} did not come",
        hint="look at what those ranks printed; the address must be reachable from their hosts; --timeout waits longer",
    )


def _connect(host: str, port: int, world: World, timeout: float) -> dist.TCPStore:
    try:
        return dist.TCPStore(
            host, port, is_master=world.is_lead, timeout=timedelta(seconds=timeout), wait_for_workers=False
        )
    except (dist.DistNetworkError, dist.DistStoreError, RuntimeError) as cause:
        if "EADDRINUSE" in str(cause) or "address already in use" in str(cause).lower():
            raise RanksError(
                f"port {port} on {world.host} is taken", hint="choose another port for every rank, or stop who has it"
            ) from cause
        who = "rank 0 could not listen" if world.is_lead else f"rank {world.rank} could not reach rank 0"
        raise RanksError(
            f"{who} at {host}:{port} within {timeout:g} s",
            hint=f"is rank 0 running, on {host}, with the same address, and is the port open?",
        ) from cause


class FileMeeting:
    """Meeting over a shared folder beside a path, whatever earlier attempts left there and whoever comes first.

    Every rank writes a hello with a nonce of its own. Rank 0 answers each nonce with the token of this attempt, which
    it has just drawn; a rank that finds its nonce answered acknowledges the token. When rank 0 has seen every rank
    acknowledge its token, which no rank of an earlier attempt can, it says go, and all open the store of that name.
    """

    def __init__(self, path: Path, world: World, timeout: float) -> None:
        self._folder = path.with_name(path.name + ".meeting")
        self._world = world
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout

    def open(self) -> dist.Store:
        """Meet, and return the store of this attempt."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as cause:
            raise RanksError(f"cannot meet at {self._folder}: {cause.strerror}", hint="use a shared folder") from cause
        token = self._lead() if self._world.is_lead else self._follow()
        store = dist.FileStore(str(self._folder / f"store-{token}"), self._world.size)
        store.set_timeout(timedelta(seconds=self._timeout))
        return store

    def _lead(self) -> str:
        token = secrets.token_hex(8)
        others = range(1, self._world.size)
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
        rank = self._world.rank
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
            raise missing_ranks(missing, self._world, self._timeout)
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
        scratch = self._folder / f".{name}.{self._world.host}.{os.getpid()}"
        scratch.write_text(text, encoding="ascii")
        scratch.replace(self._folder / name)


def leave_meeting(world: World) -> None:
    """Remove what a file meeting wrote; the lead calls it when all have left."""
    kind, _, place = world.meeting.partition("://")
    if kind == "file" and world.is_lead:
        shutil.rmtree(Path(place).with_name(Path(place).name + ".meeting"), ignore_errors=True)
