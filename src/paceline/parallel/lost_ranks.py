"""Detecting that another rank is lost, and naming the rank that failed first, with its error.

The launcher's side of this is `launching.failures`, which reads how each rank ended.
"""

import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from paceline.core.errors import LostRankError, RanksError
from paceline.core.limits import seconds_between_beats
from paceline.core.units import ranks_text
from paceline.core.world import World
from paceline.parallel.flight_recorder import write_collectives
from paceline.parallel.stacks import describe_stacks, waiting_collective
from paceline.records.entries import State
from paceline.records.folder import RunFolder
from paceline.records.reader import is_alive, read_rank

CLOSED = re.compile(
    r"(connection|socket) (was )?(closed|reset)|reset by peer|broken pipe|remote process exited|was aborted|"
    r"remote (worker|peer)",
    re.IGNORECASE,
)
FROM_TORCH = re.compile(r"gloo|nccl|c10d|tcpstore", re.IGNORECASE)
PEER = re.compile(r"\[([0-9a-fA-F.:]+)\]:\d+")
TIMED_OUT = re.compile(r"timed? ?out", re.IGNORECASE)
BEATS_TO_LOOK = 3
"""Heartbeats to wait for: a rank that writes none in this time is dead."""
BEATS_UNTIL_SILENT = 5
RankFiles = Mapping[int, dict[str, Any]]


def is_lost(text: str) -> bool:
    """Tell whether an error text is torch's error for a connection whose peer has exited."""
    return CLOSED.search(text) is not None and FROM_TORCH.search(text) is not None


def peer_of(text: str) -> str:
    """Return the address of the lost peer, as far as the error text has it."""
    found = PEER.search(text)
    return "another rank" if found is None else f"a rank at {found[1]}"


@contextmanager
def loss_explained() -> Iterator[None]:
    """Turn a broken connection into LostRankError, while there is no run folder yet."""
    try:
        yield
    except RuntimeError as problem:
        if not is_lost(str(problem)):
            raise
        raise LostRankError(
            f"the connection to {peer_of(str(problem))} was lost", hint="see the output of the other ranks"
        ) from problem


@contextmanager
def lost_rank_named(folder: RunFolder, world: World, timeout: float) -> Iterator[None]:
    """Turn a broken connection or a timeout of a collective into an error that names the rank, from the state files."""
    try:
        yield
    except RuntimeError as problem:
        if world.size > 1 and is_lost(str(problem)):
            raise explain_loss(problem, folder, world) from problem
        if world.size == 1 or not TIMED_OUT.search(str(problem)):
            raise
        files = {rank: read_rank(folder.rank(rank)) for rank in range(world.size)}
        roll_call = f"no answer within {timeout:g} s: {describe_ranks(files, now=time.time())}"
        collective = waiting_collective()
        if collective is not None:
            roll_call += f"\n  rank {world.rank} waited in {collective}"
        is_written = write_collectives(folder.rank_collectives(world.rank))
        trace = [f"the last collectives of this rank are in {folder.rank_collectives(world.rank)}"] * is_written
        raise RanksError(
            "\n  ".join([roll_call, *describe_stacks(folder, files, world.host), *trace]),
            hint=f"see {folder.rank(0).parent}; to wait longer, raise --timeout; to continue the run: --resume",
        ) from problem


def describe_ranks(files: Mapping[int, Mapping[str, Any] | None], *, now: float) -> str:
    """Describe the state of each rank: first the running ones, grouped by phase, then the silent ones."""
    groups: dict[str, list[int]] = defaultdict(list)
    for rank, file in files.items():
        if file is None:
            groups["never started"].append(rank)
        elif now - file["time"] > BEATS_UNTIL_SILENT * seconds_between_beats(len(files)):
            groups[f"silent since step {file['step'] + 1}"].append(rank)
        else:
            doing = file["doing"] if file["doing"].startswith("waiting") else f"in {file['doing']}"
            groups[f"{doing} at step {file['step'] + 1}"].append(rank)
    ordered = sorted(groups.items(), key=lambda group: (group[0].startswith(("silent", "never")), group[1]))
    return "; ".join(f"{ranks_text(ranks)} {state}" for state, ranks in ordered)


def explain_loss(problem: RuntimeError, folder: RunFolder, world: World) -> LostRankError:
    """Return the error that names the first failed rank and its error, as far as the state files contain them."""
    first = files = _read(folder, world)
    deadline = time.monotonic() + BEATS_TO_LOOK * seconds_between_beats(world.size)
    while (cause := _first_cause(files)) is None and time.monotonic() < deadline:
        time.sleep(0.1)
        files = _read(folder, world)
    silent = [file for rank, file in files.items() if _runs(file) and file["time"] == first.get(rank, file)["time"]]
    cause = cause or (_died(silent[0]) if silent else None)
    return LostRankError(
        cause or f"the connection to {peer_of(str(problem))} was lost",
        hint=f"see its output and {folder.rank(0).parent}; to continue the run: --resume",
    )


def _read(folder: RunFolder, world: World) -> RankFiles:
    found = {rank: read_rank(folder.rank(rank)) for rank in range(world.size) if rank != world.rank}
    return {rank: file for rank, file in found.items() if file is not None}


def _runs(file: dict[str, Any]) -> bool:
    return not State(file["state"]).is_final


def _first_cause(files: RankFiles) -> str | None:
    """Return the failure of a rank that was not caused by a lost rank, or the rank that died on this host."""
    for file in files.values():
        if file["state"] == State.FAILED and not is_lost(file["detail"]):
            return f"rank {file['rank']} on {file['host']} failed after step {file['step']}: {file['detail']}"
    return next((_died(file) for file in files.values() if _runs(file) and not is_alive(file)), None)


def _died(file: dict[str, Any]) -> str:
    rank = f"rank {file['rank']} on {file['host']} (process {file['pid']})"
    return f"{rank} died after step {file['step']} without reporting an error (killed or out of memory?)"
