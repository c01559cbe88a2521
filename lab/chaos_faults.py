"""The faults that `lab.chaos` draws: each one strikes a running training once, and is undone before a resume."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import IO

import psutil

from lab.hosts import Hosts
from paceline.records.folder import RunFolder, list_checkpoints

MARK = "CHAOS_TRIAL"
"""The environment variable by which the processes of a trial are found."""
BLIP = 2.0
"""Seconds of a fault that is shorter than the timeout of the run."""


class Target:
    """A training that runs: its launchers, its folder, and the hosts it runs on, if it has hosts."""

    def __init__(self, folder: Path, token: str, hosts: Hosts | None, *, is_elastic: bool = False) -> None:
        self.folder = folder
        self.token = token
        self.hosts, self.is_elastic = hosts, is_elastic
        self.launchers: list[int] = []
        self.start_node: Callable[[int], None] = _start_nothing
        """Starts the node of an elastic job that runs on a host."""
        self.store: subprocess.Popen | None = None
        """The rendezvous of an elastic job, which ends with it."""
        self.log: IO[bytes] = (folder.parent / f"{folder.name}.log").open("ab")
        self.log_start = 0

    @property
    def run(self) -> RunFolder | None:
        """The run, once its folder exists."""
        found = list(self.folder.glob("runs/*/*/config.toml"))
        return RunFolder(found[0].parent) if found else None

    def processes(self) -> list[psutil.Process]:
        """Return every living process that the trial has started, wherever it is in the tree."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                is_ours = process.environ().get(MARK) == self.token
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def below(self, depth: int) -> list[psutil.Process]:
        """Return the processes this far below a launcher: 0 launchers, 1 reapers, 2 agents, 3 ranks."""
        level = []
        for pid in self.launchers:
            with contextlib.suppress(psutil.Error):
                level.append(psutil.Process(pid))
        for _ in range(depth):
            above, level = level, []
            for process in above:
                with contextlib.suppress(psutil.Error):
                    level.extend(process.children())
        return level


def _start_nothing(_host: int) -> None:
    """Start no node: only elastic jobs have any."""


Fault = Callable[[Target, Random], str | None]
"""Strikes, and returns what it did; None if there was nothing to strike yet."""


def signal_one(depth: int, number: signal.Signals) -> Fault:
    """Return a fault that sends a signal to a random process at a depth of the tree."""

    def strike(target: Target, random: Random) -> str | None:
        found = target.below(depth)
        if not found:
            return None
        victim = random.randrange(len(found))
        with contextlib.suppress(psutil.Error):
            found[victim].send_signal(number)
            return f"{number.name} to number {victim}"
        return None

    return strike


def stop_all_ranks(target: Target, _random: Random) -> str | None:
    """Stop every rank: none is left to notice."""
    ranks = target.below(3)
    for rank in ranks:
        with contextlib.suppress(psutil.Error):
            rank.suspend()
    return f"SIGSTOP to {len(ranks)} ranks" if ranks else None


def blip(target: Target, random: Random) -> str | None:
    """Stop a rank for less than the timeout."""
    ranks = target.below(3)
    if not ranks:
        return None
    with contextlib.suppress(psutil.Error):
        rank = random.choice(ranks)
        rank.suspend()
        time.sleep(BLIP)
        rank.resume()
        return f"a rank stopped for {BLIP:g} s"
    return None


def fill_disk(target: Target, _random: Random) -> str | None:
    """Fill the file system of the run folder; `undo` frees it."""
    with (target.folder / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    return "disk full until the run failed or ended"


def fill_disk_blip(target: Target, random: Random) -> str | None:
    """Fill the disk, and free it again."""
    fill_disk(target, random)
    time.sleep(BLIP)
    undo(target)
    return f"disk full for {BLIP:g} s"


def damage_newest(target: Target, random: Random) -> str | None:
    """Kill the launchers, then flip a bit in the newest checkpoint or cut one of its files short."""
    run = target.run
    saved = [] if run is None else list_checkpoints(run.checkpoints)
    if len(saved) < 2:
        return None
    for launcher in target.below(0):
        launcher.kill()
    gone = time.monotonic() + 10
    while target.processes() and time.monotonic() < gone:  # a rank could still save a checkpoint after the damage
        time.sleep(0.1)
    assert run is not None
    files = sorted(path for path in list_checkpoints(run.checkpoints)[-1].iterdir() if path.stat().st_size)
    path = random.choice(files)
    data = bytearray(path.read_bytes())
    if random.random() < 0.5:
        kept = random.randrange(len(data))
        path.write_bytes(data[:kept])
        return f"launcher killed, {path.name} cut to {kept} of {len(data)} bytes"
    bit = random.randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    return f"launcher killed, bit {bit} of {path.name} flipped"


def cut_link(target: Target, random: Random) -> str | None:
    """Take a link down for less than the timeout."""
    assert target.hosts is not None
    host = random.randint(1, target.hosts.number)
    target.hosts.cut(host)
    time.sleep(BLIP)
    target.hosts.heal(host)
    return f"link of node {host - 1} down for {BLIP:g} s"


def lose_node(target: Target, random: Random) -> str | None:
    """Take the power of a node of an elastic job, the first one included; it does not come back."""
    assert target.hosts is not None
    host = random.randint(1, target.hosts.number)
    if not target.hosts.pids(host):
        return None
    target.hosts.kill(host)
    return f"node{host} lost"


def lose_node_for_a_while(target: Target, random: Random) -> str | None:
    """Take the power of a node of an elastic job, and start it again some seconds later."""
    lost = lose_node(target, random)
    if lost is None:
        return None
    assert target.hosts is not None
    host, seconds = int(lost.removeprefix("node").split()[0]), random.uniform(0, 15)
    time.sleep(seconds)
    target.hosts.heal(host)
    target.start_node(host)
    return f"{lost} for {seconds:.0f} s"


def stop_node(target: Target, random: Random) -> str | None:
    """Tell one node of an elastic job to stop, as before it is preempted."""
    launchers = target.below(0)
    if not launchers:
        return None
    victim = random.randrange(len(launchers))
    with contextlib.suppress(psutil.Error):
        launchers[victim].send_signal(signal.SIGTERM)
        return f"SIGTERM to node {victim}"
    return None


def undo(target: Target) -> None:
    """End what a fault left: give the disk its space back, and hosts their links."""
    (target.folder / "ballast").unlink(missing_ok=True)
    if target.hosts is not None:
        for host in range(1, target.hosts.number + 1):
            target.hosts.heal(host)


KILL, STOP = signal.SIGKILL, signal.SIGSTOP
ON_ONE_HOST: dict[str, Fault] = {
    "kill a rank": signal_one(3, KILL),
    "kill the agent": signal_one(2, KILL),
    "kill the reaper": signal_one(1, KILL),
    "kill the launcher": signal_one(0, KILL),
    "stop a rank": signal_one(3, STOP),
    "stop all ranks": stop_all_ranks,
    "stop the agent": signal_one(2, STOP),
    "stop a rank briefly": blip,
    "SIGTERM": signal_one(0, signal.SIGTERM),
    "SIGINT": signal_one(0, signal.SIGINT),
    "SIGUSR1": signal_one(0, signal.SIGUSR1),
    "disk full": fill_disk,
    "disk full briefly": fill_disk_blip,
    "damaged checkpoint": damage_newest,
}
ON_TWO_HOSTS: dict[str, Fault] = {
    "two nodes: kill a rank": signal_one(3, KILL),
    "two nodes: kill a launcher": signal_one(0, KILL),
    "two nodes: link down briefly": cut_link,
}

ELASTIC: dict[str, Fault] = {
    "elastic: node lost": lose_node,
    "elastic: node lost and back": lose_node_for_a_while,
    "elastic: node told to stop": stop_node,
    "elastic: kill a rank": signal_one(3, KILL),
    "elastic: kill a launcher": signal_one(0, KILL),
}


def is_root() -> bool:
    """Tell whether faults that need a file system of their own can be drawn."""
    return os.geteuid() == 0
